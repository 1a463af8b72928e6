//! Reads of an operator that has just started, with many resources that refer to the same objects.

use std::collections::BTreeMap;

use alustan_api::Terraform;
use alustan_api::labels::ALLOW_CACHE;
use futures::StreamExt as _;
use k8s_openapi::jiff::Timestamp;
use serde_json::json;

use super::operator::Operator;
use crate::context::Context;
use crate::memory_cluster::MemoryCluster;
use crate::observe::observer::Observer;
use crate::reconciliation::Reconciliation;
use crate::resource::ref_of;

const NAMESPACES: usize = 4;

/// Names of Secrets in each namespace.
const SECRETS: [&str; 3] = ["cloud", "database", "provider"];

/// Number of concurrent reconciles.
const CONCURRENCY: usize = 16;

/// Returns a cluster in which all resources of a namespace refer to the same objects.
fn cluster(resources: usize) -> MemoryCluster {
    let cluster = MemoryCluster::new(Timestamp::UNIX_EPOCH);
    for namespace in (0..NAMESPACES).map(|i| format!("team-{i}")) {
        cluster.put("namespaces", json!({"metadata": {"name": namespace}}));
        let metadata = |name: &str| json!({"name": name, "namespace": namespace});
        for name in SECRETS {
            cluster.put(
                "secrets",
                json!({"metadata": metadata(name), "data": {"a": "YQ=="}}),
            );
        }
        cluster.put(
            "configmaps",
            json!({"metadata": metadata("sizes"), "data": {"size": "1"}}),
        );
        cluster.put("serviceaccounts", json!({"metadata": metadata("runs")}));
        let mut claim = json!({"metadata": metadata("plans"), "status": {"phase": "Bound"}});
        claim["metadata"]["annotations"] = json!({ALLOW_CACHE: "true"});
        cluster.put("persistentvolumeclaims", claim);
    }
    let environment: Vec<_> = SECRETS.iter().map(|name| json!({"name": name})).collect();
    for i in 0..resources {
        let tf = json!({
            "apiVersion": "alustan.io/v1alpha1", "kind": "Terraform",
            "metadata": {"name": format!("web-{i}"), "namespace": format!("team-{}", i % NAMESPACES)},
            "spec": {
                "gitRepo": {"url": "https://git.test/team/infra"},
                "containerRegistry": {"imageName": "registry.test/team/web"},
                "cache": {"claimName": "plans"},
                "runner": {
                    "envFromSecrets": environment, "serviceAccountName": "runs",
                    // A resource of an earlier version. No request reads an object with this name.
                    "pod": {"envFrom": [{"secretRef": {"name": "../configmaps/sizes"}}]},
                },
                "variablesFrom": [{"configMapRef": {"name": "sizes"}}],
            },
        });
        cluster.put("terraforms", tf);
    }
    cluster
}

/// Observes the inputs of a reconcile of `tf`.
async fn observe(ctx: &Context, tf: &Terraform) {
    let reconciliation = Reconciliation {
        ctx,
        resource: &ref_of(tf),
        tf,
        unreadable: None,
    };
    let observer = Observer::new(&reconciliation);
    let (seen, _) = Box::pin(observer.observe()).await.unwrap();
    assert!(
        seen.inputs
            .is_ok_and(|inputs| inputs.runner.len() == SECRETS.len())
    );
    assert_eq!(seen.stack.variables.found.len(), 1);
}

/// Returns the number of reads of single objects since the last call, by plural name of their kind.
fn reads_by_kind(cluster: &MemoryCluster) -> BTreeMap<String, usize> {
    let mut reads = BTreeMap::new();
    for read in cluster.take_reads() {
        let (kind, _) = read.split_once(' ').unwrap();
        *reads.entry(kind.to_owned()).or_default() += 1;
    }
    reads
}

#[tokio::test]
async fn start_reads_each_object_once_for_all_resources() {
    for resources in [200, 400] {
        let cluster = cluster(resources);
        let mut operator = Operator::start(&cluster).await;
        operator.sync(&cluster);
        let ctx = &operator.ctx;
        let all = cluster.all::<Terraform>("terraforms");
        let reconciles = all.iter().map(|tf| observe(ctx, tf));
        let reconciles = futures::stream::iter(reconciles).buffer_unordered(CONCURRENCY);
        assert_eq!(reconciles.count().await, resources);
        let mut reads = reads_by_kind(&cluster);
        // Read in the background.
        assert!(reads.remove("namespaces").unwrap_or_default() <= NAMESPACES);
        let expected = BTreeMap::from([
            ("secrets".to_owned(), NAMESPACES * SECRETS.len()),
            ("configmaps".to_owned(), NAMESPACES),
            ("serviceaccounts".to_owned(), NAMESPACES),
            ("persistentvolumeclaims".to_owned(), NAMESPACES),
        ]);
        assert_eq!(reads, expected, "{resources} resources");
        // No watch reports changes of accounts and claims.
        observe(ctx, &all[0]).await;
        let unwatched = ["persistentvolumeclaims", "serviceaccounts"];
        let expected = unwatched.map(|kind| (kind.to_owned(), 1));
        assert_eq!(reads_by_kind(&cluster), BTreeMap::from(expected));
    }
}
