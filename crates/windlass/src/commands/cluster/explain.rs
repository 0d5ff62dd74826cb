//! `windlass cluster explain`: the placement of one pod.

use anyhow::{Result, anyhow, bail};
use windlass_control::explanation::Explanation;

use super::view;
use crate::{
    cli::ExplainPodArgs,
    commands::print_output,
    exit::UsageError,
    screen::{Paint, Style, Table, pluralized, print_line},
};

/// Maximum number of fitting nodes to print.
const MAX_NODES: usize = 10;

pub(super) async fn run(args: ExplainPodArgs) -> Result<()> {
    let objects = view::objects(&args.view).await?;
    let (namespace, name) = match args.pod.split_once('/') {
        Some((namespace, name)) => (Some(namespace), name),
        None => (args.namespace.as_deref(), args.pod.as_str()),
    };
    let pods = objects.pods_named(namespace, name);
    let pod = match pods.as_slice() {
        [pod] => pod,
        [] => {
            let scope =
                namespace.map(|namespace| format!(" in namespace {namespace}")).unwrap_or_default();
            return Err(UsageError(anyhow!("no pod {name}{scope}")).into());
        }
        several => {
            let namespaces: Vec<_> = several.iter().map(|pod| pod.namespace.as_str()).collect();
            let namespaces = namespaces.join(", ");
            return Err(UsageError(anyhow!(
                "pod {} is in {namespaces}: choose a namespace with -n",
                args.pod
            ))
            .into());
        }
    };
    let explanation = Explanation::of(&mut objects.to_index(), pod);
    print_output(args.output, &explanation, || print(&explanation))?;
    if explanation.node.is_none() && explanation.fitting.is_empty() {
        bail!("no node can serve pod {}", explanation.pod);
    }
    Ok(())
}

fn print(explanation: &Explanation) -> Result<()> {
    let Explanation { pod, wants, node, fitting, refused, remedies, .. } = explanation;
    print_line(format!("{pod} requests {wants}"))?;
    if let Some(node) = node {
        print_line(format!("It is on {node}. For a further pod with the same requests:"))?;
    }
    print_line("")?;
    if fitting.is_empty() {
        print_line(Paint::for_stdout().styled(Style::Error, "No node can serve it."))?;
    } else {
        print_line(format!("{} can serve it, the best first:", pluralized(fitting.len(), "node")))?;
        let mut table = Table::default();
        for candidate in fitting.iter().take(MAX_NODES) {
            table.add_row([candidate.node.clone(), candidate.rank.clone().unwrap_or_default()]);
        }
        table.print()?;
        if fitting.len() > MAX_NODES {
            print_line(Paint::for_stdout().styled(Style::Muted, "..."))?;
        }
    }
    if !refused.is_empty() {
        print_line("")?;
        let mut table = Table::new(["NODES", "EXAMPLE", "FIRST REASON"]);
        for group in refused {
            table.add_row([group.nodes.to_string(), group.example.clone(), group.reason.clone()]);
        }
        table.print()?;
    }
    if !remedies.is_empty() {
        print_line("\nRemedies:")?;
        for remedy in remedies {
            print_line(format!("  {remedy}"))?;
        }
    }
    Ok(())
}
