//! Parsing of trace tables: their values, and errors that name line and column.

use windlass_sched::{
    gpu::{ModelId, ModelSet},
    node::ResourceUsage,
    request::{Gpus, Request},
    trace::{self, TraceError},
    view::{Catalog, ClusterView},
};

const NODES: &str = "sn,cpu_milli,memory_mib,gpu,model\nn0,64000,262144,2,P100\nn1,96000,393216,0,\n\
                     n2,96000,393216,8,T4\nn3,64000,262144,1,P100\n";
const PODS: &str = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec";

fn catalog() -> Catalog {
    let mut catalog = Catalog::default();
    for name in ["P100", "T4"] {
        catalog.intern_model(name).expect("two products");
    }
    catalog
}

fn summary(view: &ClusterView) -> Vec<(u32, u32, Vec<u8>)> {
    let node_summary = |node: &windlass_sched::node::Node| {
        let models = node.gpus.iter().map(|gpu| gpu.model.0).collect();
        (node.cpu_milli.total, node.memory_mib.total, models)
    };
    view.nodes().iter().map(node_summary).collect()
}

#[test]
fn nodes_have_the_gpus_of_their_line() {
    let view = trace::nodes(NODES).expect("a valid table");
    let expected = vec![
        (64_000, 262_144, vec![0; 2]),
        (96_000, 393_216, vec![]),
        (96_000, 393_216, vec![1; 8]),
        (64_000, 262_144, vec![0]),
    ];
    assert_eq!(summary(&view), expected);
    assert_eq!(*view.catalog(), catalog());
    let node = &view.nodes()[0];
    assert!(node.gpus.iter().all(windlass_sched::gpu::Gpu::is_free));
    assert_eq!(node.pods, ResourceUsage::free(1001));
}

#[test]
fn line_endings_spaces_and_the_order_of_columns_do_not_matter() {
    let expected = summary(&trace::nodes(NODES).expect("a valid table"));
    let check = |text: &str| {
        let view = trace::nodes(text).expect(text);
        assert_eq!(summary(&view), expected, "{text:?}");
    };
    check(&NODES.replace('\n', "\r\n"));
    check(&NODES.replace('\n', "\n\n  \n"));
    check(&format!("\n\n{}", NODES.trim_end()));
    check(&NODES.replace(',', " , "));
    let swapped = "model,gpu,other,memory_mib,cpu_milli\nP100,2,x,262144,64000\n,0,,393216,96000\n\
                   T4,8,,393216,96000\nP100,1,,262144,64000,more,cells\n";
    check(swapped);
}

#[test]
fn a_pod_requests_the_gpus_of_its_line() {
    let any = ModelSet::ANY;
    let models_of = |ids: &[u8]| ids.iter().fold(ModelSet::NONE, |set, id| set.with(ModelId(*id)));
    let check = |line: &str, gpus: Gpus, models: ModelSet| {
        let pods = trace::pods(&format!("{PODS}\n{line}\n"), &catalog()).expect(line);
        let expected = Request { cpu_milli: 6000, memory_mib: 12_288, gpus, models };
        assert_eq!(pods, [expected], "{line}");
    };
    let share = |milli| Gpus::share(milli, 0);
    check("p,6000,12288,0,0,", Gpus::None, any);
    check("p,6000,12288,0,0", Gpus::None, any);
    check("p,6000,12288,0,500,", Gpus::None, any);
    check("p,6000,12288,1,460,", share(460), any);
    check("p,6000,12288,1,1,", share(1), any);
    check("p,6000,12288,1,1000,", Gpus::Whole(1), any);
    check("p,6000,12288,1,4000,", Gpus::Whole(1), any);
    check("p,6000,12288,1,70000,", Gpus::Whole(1), any);
    check("p,6000,12288,8,1000,", Gpus::Whole(8), any);
    check("p,6000,12288,64,1000,", Gpus::Whole(64), any);
    check("p,6000,12288,1,460,T4", share(460), models_of(&[1]));
    check("p,6000,12288,1,460,P100|T4", share(460), models_of(&[0, 1]));
    check("p,6000,12288,1,460,V100M16|T4|", share(460), models_of(&[1]));
    check("p,6000,12288,1,460,V100M16|V100M32", share(460), ModelSet::NONE);
    check("p,6000,12288,1,460,,LS,Running,0,1,2", share(460), any);
}

#[test]
fn the_models_column_of_pods_is_optional() {
    let text = "cpu_milli,memory_mib,num_gpu,gpu_milli\n6000,12288,1,460\n";
    let pods = trace::pods(text, &catalog()).expect("a valid table");
    assert_eq!(pods.len(), 1);
    assert_eq!(pods[0].models, ModelSet::ANY);
}

#[test]
fn an_error_names_line_and_column_of_an_invalid_cell() {
    let nodes = |lines: &str| {
        trace::nodes(&format!("sn,cpu_milli,memory_mib,gpu,model\n{lines}")).expect_err(lines)
    };
    let pods = |lines: &str| trace::pods(&format!("{PODS}\n{lines}"), &catalog()).expect_err(lines);
    let check = |error: &TraceError, expected: &str| assert_eq!(error.to_string(), expected);
    check(&nodes("n,many,1,1,T4"), "line 2: cpu_milli is \"many\", not a whole number");
    check(
        &nodes("n,1,1,1,T4\n\nn,1,1.5,1,T4"),
        "line 4: memory_mib is \"1.5\", not a whole number",
    );
    check(&nodes("n,1,1,-1,T4"), "line 2: gpu is \"-1\", not a whole number");
    check(&nodes("n,1,1,65,T4"), "line 2: gpu is \"65\", not a number up to 64");
    check(
        &nodes("n,1,4294967296,1,T4"),
        "line 2: memory_mib is \"4294967296\", not a whole number",
    );
    check(&nodes("n,1"), "line 2: gpu is \"\", not a whole number");
    check(&pods("p,1,1,65,1000,"), "line 2: num_gpu is \"65\", not a number up to 64");
    check(&pods("p,1,1,1,half,"), "line 2: gpu_milli is \"half\", not a whole number");
    check(&pods("p,1,1,,1000,"), "line 2: num_gpu is \"\", not a whole number");
    check(&pods("p,1,1,1,1000,\r\np,,1,1,1000,"), "line 3: cpu_milli is \"\", not a whole number");
    check(&pods("p"), "line 2: num_gpu is \"\", not a whole number");
}

#[test]
fn an_error_names_a_missing_column() {
    let headers = "sn,cpu_milli,memory_mib,gpu,model";
    for column in ["cpu_milli", "memory_mib", "gpu", "model"] {
        let error = trace::nodes(&headers.replace(column, "x")).expect_err(column);
        assert_eq!(error, TraceError::Column(column));
        assert_eq!(error.to_string(), format!("column {column} is missing"));
    }
    for column in ["cpu_milli", "memory_mib", "num_gpu", "gpu_milli"] {
        let error = trace::pods(&PODS.replace(column, "x"), &catalog()).expect_err(column);
        assert_eq!(error, TraceError::Column(column));
    }
    assert_eq!(trace::nodes("").expect_err("empty"), TraceError::Column("cpu_milli"));
    assert!(trace::nodes(headers).expect("no node").nodes().is_empty());
    assert!(trace::pods(PODS, &catalog()).expect("no pod").is_empty());
}

#[test]
fn an_error_names_the_first_product_beyond_the_limit() {
    let table = |count: u32| {
        let lines = (0..count).map(|n| format!("n,1,1,1,model-{n}\n"));
        format!("sn,cpu_milli,memory_mib,gpu,model\n{}", lines.collect::<String>())
    };
    assert_eq!(trace::nodes(&table(64)).expect("64 products").nodes().len(), 64);
    let error = trace::nodes(&table(65)).expect_err("65 products");
    let expected =
        "line 66: model-64 is one product or MIG profile too many; a view has at most 64 of each";
    assert_eq!(error.to_string(), expected);
}
