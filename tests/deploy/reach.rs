//! Network access of pods, which NetworkPolicies restrict.

use serde_json::Value;

use crate::rendered::{kustomize, objects, usual};

/// Metadata endpoint of cloud providers. It serves the credentials of the node to any client.
const METADATA: &str = "169.254.169.254/32";

#[test]
fn network_policies_block_the_metadata_endpoint() {
    let chart = "networkPolicy: {enabled: true, namespaces: [team, builds]}\nbuilder: {namespace: builds}\npage: {enabled: true}";
    for (name, rendered, expected) in [
        ("chart", usual(chart), 4),
        ("staging", kustomize("deploy/kustomize/overlays/staging"), 1),
        ("prod", kustomize("deploy/kustomize/overlays/prod"), 1),
        ("namespace", kustomize("deploy/kustomize/namespace"), 1),
        ("builds", kustomize("deploy/kustomize/builds"), 1),
    ] {
        let objects = objects(&rendered);
        let policies: Vec<&Value> = objects
            .iter()
            .filter(|(id, _)| id.kind == "NetworkPolicy")
            .map(|(_, policy)| policy)
            .collect();
        assert_eq!(policies.len(), expected, "{name}");
        for policy in policies {
            let rules = policy["spec"]["egress"].as_array().unwrap();
            for rule in rules.iter().filter(|rule| rule["to"].is_array()) {
                for to in rule["to"].as_array().unwrap() {
                    let block = &to["ipBlock"];
                    let everywhere = block["cidr"] == "0.0.0.0/0";
                    let kept = block["except"]
                        .as_array()
                        .is_some_and(|ranges| ranges.iter().any(|range| range == METADATA));
                    assert!(!everywhere || kept, "{name}: {to}");
                }
            }
            assert!(rules.iter().all(|rule| rule["to"].is_array()), "{name}");
        }
    }
}

/// A policy that allows only IPv4 addresses would isolate pods in IPv6 clusters.
#[test]
fn network_policies_allow_both_ip_families() {
    let chart =
        "networkPolicy: {enabled: true, namespaces: [team, builds]}\nbuilder: {namespace: builds}";
    for rendered in [
        usual(chart),
        kustomize("deploy/kustomize/overlays/prod"),
        kustomize("deploy/kustomize/namespace"),
        kustomize("deploy/kustomize/builds"),
    ] {
        let families = ["0.0.0.0/0", "::/0"].map(|family| rendered.matches(family).count());
        assert!(families[0] > 0 && families[0] == families[1], "{rendered}");
    }
}

/// A cluster can have another domain than `cluster.local`.
#[test]
fn manifests_contain_no_cluster_domain() {
    let chart = "metacontroller: {enabled: true, tls: {enabled: true}}\n\
                 monitoring: {podMonitor: {enabled: true}, prometheusRule: {enabled: true}}";
    for rendered in [usual(""), usual(chart), kustomize("deploy/metacontroller")] {
        assert!(!rendered.contains("cluster.local"), "{rendered}");
    }
}
