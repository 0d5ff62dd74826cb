//! Expressions over the agent's devices, and over random text.

use std::collections::BTreeMap;

use jiff::Timestamp;
use proptest::prelude::*;

use super::*;
use crate::{
    attribute::{AttributeName, AttributeValue, Quantity},
    device::{DeviceKind, SourceName},
};

const fn nvidia(name: &'static str) -> AttributeName {
    AttributeName::new("nvidia.com", name)
}

/// An H100 as the agent publishes it.
fn h100() -> Device {
    let string = AttributeValue::string;
    let id = "GPU-4d5b6c31-0000-0000-0000-000000000001".parse().expect("valid");
    Device {
        index: 1,
        attributes: BTreeMap::from([
            (nvidia("productName"), string("NVIDIA H100 80GB HBM3")),
            (nvidia("architecture"), string("Hopper")),
            (nvidia("cudaComputeCapability"), AttributeValue::version("9.0")),
            (nvidia("driverVersion"), AttributeValue::version("580.95.05")),
            (nvidia("migCapable"), AttributeValue::Bool(true)),
            (crate::attribute::standard::NUMA_NODE, AttributeValue::Int(1)),
        ]),
        capacity: BTreeMap::from([
            (nvidia("memory"), Quantity::Bytes(81_559 << 20)),
            (nvidia("multiprocessors"), Quantity::Count(132)),
        ]),
        ..Device::new(id, DeviceKind::Gpu, SourceName::NVIDIA, Timestamp::UNIX_EPOCH)
    }
}

fn expression(text: &str) -> DeviceExpression {
    text.parse().expect(text)
}

#[test]
fn expressions_of_dra_select_devices() {
    for (text, expected) in [
        (r#"device.attributes["nvidia.com"].productName == "NVIDIA H100 80GB HBM3""#, true),
        (r#"device.attributes["nvidia.com"].productName.startsWith("NVIDIA H")"#, true),
        (r#"device.attributes["nvidia.com"].productName.matches("^NVIDIA A100")"#, false),
        (r#"device.attributes["nvidia.com"]["architecture"] in ["Hopper", "Blackwell"]"#, true),
        (
            r#"["A100", "H100"].exists(m, device.attributes["nvidia.com"].productName.contains(m))"#,
            true,
        ),
        (r#"device.attributes["resource.kubernetes.io"].numaNode == 1"#, true),
        (r#"device.attributes["nvidia.com"].migCapable && device.index > 0"#, true),
        (r#"device.kind == "gpu" && device.id.startsWith("GPU-4d5b")"#, true),
        (r#"has(device.attributes["nvidia.com"].profile)"#, false),
        (r#"has(device.attributes["amd.com"].productName)"#, false),
        (r#""amd.com" in device.attributes"#, false),
        (r#"size(device.attributes["amd.com"]) == 0 && size(device.attributes) == 2"#, true),
        (r#"device.attributes["nvidia.com"].?profile.orValue("whole") == "whole""#, true),
        (r#"device.attributes["nvidia.com"].exists(name, name == "migCapable")"#, true),
        (r#"device.attributes.all(domain, domain.contains("."))"#, true),
        (r#"true || device.attributes["nvidia.com"].profile == "x""#, true),
    ] {
        assert_eq!(expression(text).matches(&h100()), Ok(expected), "{text}");
    }
}

#[test]
fn quantities_and_versions_are_compared_as_kubernetes_compares_them() {
    for (text, expected) in [
        (r#"device.capacity["nvidia.com"].memory.compareTo(quantity("40Gi")) >= 0"#, true),
        (r#"device.capacity["nvidia.com"].memory.isGreaterThan(quantity("80Gi"))"#, false),
        (r#"device.capacity["nvidia.com"].memory.isLessThan(quantity("80Gi"))"#, true),
        (r#"device.capacity["nvidia.com"].memory == quantity("81559Mi")"#, true),
        (
            r#"device.capacity["nvidia.com"].memory.add(quantity("1Mi")) == quantity("81560Mi")"#,
            true,
        ),
        (r#"device.capacity["nvidia.com"].memory.sub(1).isInteger()"#, true),
        (r#"device.capacity["nvidia.com"].multiprocessors.asInteger() == 132"#, true),
        (r#"quantity("500m").asApproximateFloat() == 0.5 && quantity("-1").sign() == -1"#, true),
        (r#"quantity("1Ki").add(1).sub(quantity("1")) == quantity("1024")"#, true),
        (r#"isQuantity("1GB") || isSemver("9.0")"#, false),
        (
            r#"device.attributes["nvidia.com"].cudaComputeCapability.isGreaterThan(semver("8.9.0"))"#,
            true,
        ),
        (r#"device.attributes["nvidia.com"].cudaComputeCapability == semver("9.0.0")"#, true),
        (
            r#"device.attributes["nvidia.com"].driverVersion.compareTo(semver("580.100.0")) < 0"#,
            true,
        ),
        (
            r#"device.attributes["nvidia.com"].driverVersion.major() == 580 && semver("1.2.3").patch() == 3"#,
            true,
        ),
        (r#"semver("1.0.0-rc.1").isLessThan(semver("1.0.0"))"#, true),
    ] {
        assert_eq!(expression(text).matches(&h100()), Ok(expected), "{text}");
    }
}

#[test]
fn a_wrong_expression_is_refused_with_its_place_and_correction() {
    let deep = format!("{}true{}", "[".repeat(200), "]".repeat(200));
    let chained = format!("device{}", ".x".repeat(5_000));
    let choices = "true ? 1 : ".repeat(51);
    let long = "1".repeat(DeviceExpression::MAX_BYTES + 1);
    let loops = "[1,2,3].all(a, ".repeat(9) + "true" + &")".repeat(9);
    for (text, expected) in [
        ("", "column 1: "),
        ("device.kind ==", "column 15: "),
        ("device.kind = 'gpu'", "column 13: "),
        ("true &&\n 1 +", "line 2, column 5: "),
        ("devcie.kind == 'gpu'", r#"column 1: unknown variable "devcie": use "device""#),
        (
            "device.driver == 'x'",
            r#"column 8: device has no "driver": there are attributes, capacity, id, index, kind"#,
        ),
        (
            "device.kind == 'lower' || device.kind.lower() == ''",
            r#"column 39: there is no function "lower"; there are add, "#,
        ),
        ("[1].all(x, x > 0) && x == 1", r#"column 9: unknown variable "x""#),
        ("device.kind.matches('a(')", "not a valid regex"),
        ("a.b{c: 1}", "it makes a value of an unsupported type"),
        (&deep, "expression recursion limit exceeded: 96"),
        (&choices, "it has 51 '?' and 50 are allowed"),
        (&chained, "it nests deeper than 24 levels"),
        (&long, "it has 10241 bytes and 10240 are allowed"),
        (&loops, "1000000 are allowed: nest fewer loops"),
    ] {
        let error = text.parse::<DeviceExpression>().expect_err(text).to_string();
        assert!(error.contains(expected), "{error}");
        assert!(!error.contains('\n') && error.len() < 1_500, "{error}");
    }
}

#[test]
fn an_expression_without_an_answer_says_why_and_for_which_device() {
    for (text, expected) in [
        (r#"device.attributes["nvidia.com"].profile == "x""#, "No such key: profile"),
        (
            r#"device.attributes["nvidia.com"].productName"#,
            "a value of type string, not true or false",
        ),
        ("device", "a value of type map, not true or false"),
        (r#"quantity("40GB") == quantity("40G")"#, r#""40GB" is not a quantity, such as "40Gi""#),
        (r#"semver("9.0") == semver("9")"#, r#""9.0" is not a semantic version, such as "9.0.0""#),
        (
            r#"device.capacity["nvidia.com"].memory > quantity("40Gi")"#,
            "compare with isLessThan, isGreaterThan or compareTo",
        ),
        ("1 / 0 == 1", "zero"),
    ] {
        let error = expression(text).matches(&h100()).expect_err(text).to_string();
        assert!(error.contains(expected), "{error}");
        assert!(error.contains("for GPU-4d5b6c31") && !error.contains('\n'), "{error}");
    }
}

#[test]
fn a_deeply_nested_expression_is_refused_or_evaluated() {
    for piece in [
        "(", "[", "{", "!", "-", "a?", "a?b:", "a.", "a[", "f(", "'", "\"", "1+", "a&&",
        "x.all(a,", "has(", "{1:", "a{b:", "\\", "`", "//", "!-", ". ?",
    ] {
        let text = piece.repeat(DeviceExpression::MAX_BYTES / piece.len());
        assert!(text.parse::<DeviceExpression>().is_err(), "{piece}");
    }
    // The deepest permitted nesting, evaluated.
    let sum = "1+".repeat(22) + "1 == 23";
    let nested = "1+(".repeat(22) + "1" + &")".repeat(22) + " == 23";
    let choices = "false ? false : ".repeat(22) + "true";
    let wide = vec!["true"; 1_200].join(" && ");
    for text in [sum, nested, choices, wide] {
        assert_eq!(expression(&text).matches(&h100()), Ok(true), "{text}");
    }
}

#[test]
fn references_and_comparisons_of_an_expression_are_listed() {
    let references = |text: &str| {
        let references = expression(text).references();
        references.iter().map(|reference| reference.name().to_owned()).collect::<Vec<_>>().join(" ")
    };
    let a = r#"device.attributes["a.com"]"#;
    for (text, expected) in [
        (format!("{a}.x == 1 && has({a}.y) && {a}[\"z\"] == 'q'"), "x y z"),
        (format!("{a}.?x.orValue(1) == 1 || device.capacity['a.com'].m == quantity('1')"), "x m"),
        (format!("['u'].exists(v, {a}.x == v) && device.index == 0"), "x index"),
        (format!("[1].all(device, device.attributes['a.com'].x == 1) || {a}.y"), "y"),
        ("device.attributes.all(domain, domain != '')".to_owned(), ""),
    ] {
        assert_eq!(references(&text), expected, "{text}");
    }
    let comparisons = |text: &str| {
        let text_of = |comparison: &Comparison| {
            format!("{} {}", comparison.reference.name(), comparison.literal)
        };
        expression(text).comparisons().iter().map(text_of).collect::<Vec<_>>().join(", ")
    };
    for (text, expected) in [
        (format!("{a}.x == 3 || 'b' != {a}.y"), r#"x 3, y "b""#),
        (format!("{a}.x in ['q', 3] && {a}['z'] < -1.5"), r#"x "q", x 3, z -1.5"#),
        (format!("{a}.v == semver('1.0.0') || has({a}.v) == true"), "v semver(...)"),
        (format!("{a}.?x.orValue(1) == 'a' || {a}.x.size() == 3 || 'x' in {a}"), ""),
    ] {
        assert_eq!(comparisons(&text), expected, "{text}");
    }
}

#[test]
fn the_conjuncts_of_an_expression_keep_their_text() {
    for (text, expected) in [
        ("device.id == 'a' && device.index>0&&true", "device.id == 'a'|device.index>0|true"),
        ("(true || device.index == 1) && !true", "(true || device.index == 1)|!true"),
        ("device.id == \"a && \\\" && b\" && true", "device.id == \"a && \\\" && b\"|true"),
        ("true && [1].all(x, x > 0 && x < 2)", "true|[1].all(x, x > 0 && x < 2)"),
        ("true && true || false", "true && true || false"),
        ("true ? true && true : false", "true ? true && true : false"),
        ("device.index == 1", "device.index == 1"),
        ("true // a && b\n && !true", "true // a && b\n && !true"),
    ] {
        let parts = expression(text).conjuncts();
        let parts = parts.iter().map(DeviceExpression::as_str).collect::<Vec<_>>().join("|");
        assert_eq!(parts, expected);
    }
}

#[test]
fn an_unselected_device_is_explained_with_its_values() {
    let attribute = |name: &str| format!(r#"device.attributes["nvidia.com"].{name}"#);
    let (brand, numa) =
        (attribute("productName"), "device.attributes['resource.kubernetes.io'].numaNode");
    for (text, expected) in [
        (format!("{numa} == 1"), None),
        (
            format!("{numa} == 1 && {brand}.startsWith('NVIDIA A') && {numa} == 7"),
            Some(format!(
                "{brand}.startsWith('NVIDIA A') is false: productName is \"NVIDIA H100 80GB HBM3\""
            )),
        ),
        (
            format!("{} == 'x' && {numa} == 7", attribute("profile")),
            Some(format!("{numa} == 7 is false: numaNode is 1")),
        ),
        (
            format!("{numa} == 0 || device.index == 3"),
            Some(format!("{numa} == 0 || device.index == 3 is false: numaNode is 1, index is 1")),
        ),
        (
            format!("has({})", attribute("profile")),
            Some(format!("has({}) is false: it has no profile", attribute("profile"))),
        ),
        (
            format!("{numa} == 1 && {} == 'x'", attribute("profile")),
            Some("it has no profile".to_owned()),
        ),
        (
            format!("{} == 'x'", attribute("prodcutName")),
            Some("it has no prodcutName: did you mean productName?".to_owned()),
        ),
        (
            "device.attributes['nvdia.com'].productName == 'x'".to_owned(),
            Some("it has no productName: did you mean nvidia.com?".to_owned()),
        ),
        ("quantity('x') == quantity('1')".to_owned(), Some("\"x\" is not a quantity".to_owned())),
    ] {
        let reason = expression(&text).explain_mismatch(&h100());
        match (reason, expected) {
            (Some(reason), Some(expected)) => assert!(reason.contains(&expected), "{reason}"),
            (reason, expected) => assert_eq!(reason, expected, "{text}"),
        }
    }
}

const ATOMS: &[&str] = &[
    "device",
    "device.attributes",
    "device.attributes['nvidia.com']",
    "device.index",
    "device.attributes['nvidia.com'].productName",
    "device.attributes['nvidia.com'].driverVersion",
    "device.capacity['nvidia.com'].memory",
    "x",
    "quantity('1.5Gi')",
    "semver('1.2.3-rc.1')",
    "null",
    "true",
    "0",
    "-9223372036854775808",
    "18446744073709551615u",
    "1e308",
    "'é\\n'",
    "b'x'",
    "'(?i)a{3}'",
    "[]",
    "{}",
    "int",
];

const OPERATORS: &[&str] =
    &["+", "-", "*", "/", "%", "==", "!=", "<", "<=", ">", ">=", "&&", "||", "in"];

const PREFIXES: &[&str] = &[
    "!",
    "-",
    "int",
    "uint",
    "double",
    "string",
    "bytes",
    "bool",
    "dyn",
    "type",
    "size",
    "has",
    "quantity",
    "semver",
    "isQuantity",
    "isSemver",
];

const METHODS: &[&str] = &[
    "compareTo",
    "isLessThan",
    "add",
    "sub",
    "contains",
    "startsWith",
    "endsWith",
    "matches",
    "orValue",
    "or",
    "size",
    "nonsense",
];

/// Random expressions. Most parse, few are valid.
fn any_expression() -> impl Strategy<Value = String> {
    let one_of = prop::sample::select::<&str>;
    one_of(ATOMS).prop_map(str::to_owned).prop_recursive(5, 32, 3, move |inner| {
        let two = (inner.clone(), inner.clone());
        let three = (inner.clone(), inner.clone(), inner.clone());
        prop_oneof![
            (two.clone(), one_of(OPERATORS)).prop_map(|((a, b), op)| format!("({a} {op} {b})")),
            (inner.clone(), one_of(PREFIXES)).prop_map(|(a, name)| format!("{name}({a})")),
            (two.clone(), one_of(METHODS)).prop_map(|((a, b), name)| format!("({a}).{name}({b})")),
            (inner, one_of(&["asInteger", "sign", "major", "size", "hasValue", "value"]))
                .prop_map(|(a, name)| format!("({a}).{name}()")),
            (two.clone(), one_of(&["all", "exists", "exists_one", "map", "filter"]))
                .prop_map(|((a, b), name)| format!("({a}).{name}(x, {b})")),
            two.clone().prop_map(|(a, b)| format!("[{a}, {b}]")),
            two.clone().prop_map(|(a, b)| format!("{{{a}: {b}}}")),
            two.clone().prop_map(|(a, b)| format!("({a})[{b}]")),
            two.prop_map(|(a, b)| format!("({a})[?{b}]")),
            three.prop_map(|(a, b, c)| format!("({a} ? {b} : {c})")),
        ]
    })
}

proptest! {
    #[test]
    fn no_text_makes_it_panic(text in prop_oneof!["[ -~]{0,40}", "\\PC{0,40}", any_expression()]) {
        if let Ok(expression) = text.parse::<DeviceExpression>() {
            let _ = expression.matches(&h100());
            let _ = (expression.references(), expression.comparisons(), expression.conjuncts());
        }
    }
}
