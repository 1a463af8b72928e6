//! Watches of the objects that specs name.

use std::collections::BTreeSet;

use alustan_api::Terraform;
use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::{Value, json};

use super::{Operator, condition, wait};
use crate::server::until;
use crate::space::{Space, resource, with};

/// Number of resources, and of `ConfigMap`s that each of them names.
const RESOURCES: usize = 4;
const OBJECTS: usize = 5;

fn name(resource: usize, object: usize) -> String {
    format!("gate-{resource}-{object}")
}

/// Returns a resource that waits for its own `ConfigMap`s.
fn waiting(number: usize) -> Value {
    let gates = (0..OBJECTS).map(
        |object| json!({"apiVersion": "v1", "kind": "ConfigMap", "name": name(number, object)}),
    );
    let gates: Vec<_> = gates.collect();
    with(
        resource(&format!("web-{number}")),
        "/waitFor",
        Some(json!(gates)),
    )
}

/// Returns the watches of `ConfigMap`s in the namespace of `space`, without their resource version and timeout.
fn watches(operator: &Operator, space: &Space) -> BTreeSet<String> {
    let watches = operator.calls().filter(|call| {
        let object = &call["objectRef"];
        call["verb"] == "watch"
            && object["resource"] == "configmaps"
            && object["namespace"] == space.namespace.as_str()
    });
    let selectors = watches.map(|call| {
        let uri = call["requestURI"].as_str().unwrap();
        let parameters = uri.split(['?', '&']);
        let selector = parameters
            .into_iter()
            .find(|text| text.starts_with("fieldSelector="));
        selector.unwrap_or_default().to_owned()
    });
    selectors.collect()
}

#[tokio::test]
async fn objects_of_a_kind_and_namespace_share_a_watch() {
    let operator = Operator::shared().await;
    let space = operator.space().await;
    for number in 0..RESOURCES {
        space.apply(&waiting(number)).await.unwrap();
    }
    let watches = until("the watch of all ConfigMaps", async || {
        let watches = watches(operator, &space);
        let has_shared = watches.contains("");
        has_shared
            .then(|| watches.clone())
            .ok_or_else(|| format!("{watches:?}"))
    })
    .await;
    assert!(watches.len() <= 4, "{watches:?}");
    let api = space.api::<Terraform>();
    for number in 0..RESOURCES {
        for object in 0..OBJECTS {
            let missing = format!("ConfigMap {} does not exist", name(number, object));
            let waits = |tf: &Terraform| condition(tf, "DependenciesReady").2.contains(&missing);
            wait(&api, &format!("web-{number}"), &missing, waits).await;
            let gate = json!({"metadata": {"name": name(number, object)}});
            space.create::<ConfigMap>(gate).await;
        }
    }
    operator.keeps_to_its_role();
}

/// Separate watches fill the caches of the objects of the operator.
#[tokio::test]
async fn watches_of_named_secrets_exclude_objects_of_the_operator() {
    let operator = Operator::shared().await;
    let unmanaged = "labelSelector=%21alustan.io%2Fuid";
    for kind in ["secrets", "configmaps"] {
        let requests = until("the watches", async || {
            let watches = operator.calls().filter(|call| {
                let object = &call["objectRef"];
                call["verb"] == "watch"
                    && object["resource"] == kind
                    && object["namespace"].is_null()
            });
            let uris: BTreeSet<_> = watches.map(|call| call["requestURI"].to_string()).collect();
            (uris.len() >= 2)
                .then(|| uris.clone())
                .ok_or_else(|| format!("{uris:?}"))
        })
        .await;
        let has = |text: &str| requests.iter().any(|uri| uri.contains(text));
        assert!(has(unmanaged), "{requests:?}");
        assert!(
            requests.iter().all(|uri| uri.contains("labelSelector=")),
            "{requests:?}"
        );
    }
}
