//! `k8s-rdma-sriov-dev-plugin`, which was given up in 2020: one resource, for ports or for their
//! virtual functions.

use serde::Deserialize;
use windlass_config::{
    MissingNodes, NicPolicy, ResourceRule, Sharing,
    document::{Lined, Node, Remarks},
};

use super::{
    Imported,
    expression::{All, has},
    names, nics, present, read as read_document,
};

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct File {
    mode: Option<Lined<String>>,
    pf_netdevices: Option<Lined<Vec<String>>>,
}

/// What `mode` may say.
const MODES: [&str; 2] = ["hca", "sriov"];

/// How many containers may have the ports in mode `hca`: the plugin's own number.
const TOKENS: i64 = 1000;

/// Whether a document is of this plugin. A mode alone says so too, if it is one of the plugin's.
pub(super) fn is_file(root: &Node) -> bool {
    let mode = root.child_like("mode").and_then(Node::text);
    let is_alone = root.keys().count() == 1;
    let is_its = mode.is_some_and(|mode| MODES.contains(&mode.as_str()));
    root.child_like("pfNetdevices").is_some() || (is_alone && is_its)
}

pub(super) fn read(root: &Node, remarks: &mut Remarks) -> Imported {
    let file: File = read_document(root, remarks);
    let line = file.mode.as_ref().map_or(1, |mode| mode.line);
    let ports = present(file.pf_netdevices);
    let is_sriov = file.mode.as_ref().is_some_and(|mode| mode.value == "sriov");
    remarks.warn(line, if is_sriov { FUNCTIONS } else { PORTS });
    let mut all = All::default();
    all.and(has("rdmaDevice"));
    if is_sriov && ports.is_empty() {
        remarks.wrong(line, "pfNetdevices names no port whose functions are meant");
    }
    let (name, sharing) = if is_sriov {
        all.one_of("pfName", &ports);
        ("vhca", Sharing::Exclusive)
    } else {
        ("hca", nics::pool(&Lined { line, value: TOKENS }, remarks))
    };
    let name = names::resource("rdma", &Lined { line, value: name.to_owned() }, remarks);
    let devices = nics::all(all.into_expression(line, remarks));
    let rule = name.map(|name| ResourceRule::new(name, devices, sharing));
    let rules = rule.map(|value| Lined { line, value }).into_iter().collect();
    // A folder was given, whatever was in it.
    let nics = NicPolicy { missing_nodes: MissingNodes::LeftOut, ..nics::with_all_nodes() };
    Imported { rules, nics, ..Imported::default() }
}

const FUNCTIONS: &str = "this plugin was given up in 2020. It made virtual functions itself; here \
    they are offered once somebody has made them (sriov_numvfs). A container got all of \
    /dev/infiniband; here it gets the nodes of its own function";

const PORTS: &str = "this plugin was given up in 2020. A container got all of /dev/infiniband; here \
    it gets the nodes of the interfaces of this resource";
