//! What the operator's role allows: every call that the operator makes, and nothing else.

use std::collections::BTreeSet;

use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use k8s_openapi::api::rbac::v1::{ClusterRole, Role, RoleBinding};
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::server::{OPERATOR, Server};
use crate::space::Space;

/// Every call of the operator: group, resource, verbs, and what for.
const NEEDED: [(&str, &str, &[&str]); 15] = [
    // The watch of the resources; finalizers; what can be read of one that is unreadable.
    (
        "alustan.io",
        "terraforms",
        &["get", "list", "watch", "patch"],
    ),
    ("alustan.io", "terraforms/status", &["patch"]),
    // Records, pins, state, outputs, pull secrets, credentials; `update` is granted to runners.
    (
        "",
        "secrets",
        &[
            "get", "list", "watch", "create", "patch", "update", "delete",
        ],
    ),
    // Scripts, variables and outputs.
    (
        "",
        "configmaps",
        &["get", "list", "watch", "create", "patch", "delete"],
    ),
    // The uid in the image's tag; the label of those that hold state.
    ("", "namespaces", &["get", "patch"]),
    (
        "",
        "serviceaccounts",
        &["get", "list", "create", "patch", "delete"],
    ),
    (
        "",
        "persistentvolumeclaims",
        &["get", "list", "watch", "create", "delete"],
    ),
    // Pods that apply are not evicted.
    (
        "policy",
        "poddisruptionbudgets",
        &["get", "list", "create", "patch", "delete"],
    ),
    (
        "rbac.authorization.k8s.io",
        "roles",
        &["get", "list", "create", "patch", "delete"],
    ),
    (
        "rbac.authorization.k8s.io",
        "rolebindings",
        &["get", "list", "create", "patch", "delete"],
    ),
    (
        "batch",
        "jobs",
        &["get", "list", "watch", "create", "delete"],
    ),
    ("", "pods", &["list", "watch"]),
    // Why a build failed.
    ("", "pods/log", &["get"]),
    ("events.k8s.io", "events", &["create"]),
    // What every account may do.
    (
        "authorization.k8s.io",
        "selfsubjectaccessreviews",
        &["create"],
    ),
];

/// Calls that would be worth something to a thief.
const REFUSED: [(&str, &str, &[&str]); 25] = [
    (
        "alustan.io",
        "terraforms",
        &["create", "update", "delete", "deletecollection"],
    ),
    ("", "secrets", &["deletecollection"]),
    ("", "configmaps", &["update", "deletecollection"]),
    ("", "namespaces", &["list", "create", "update", "delete"]),
    ("", "nodes", &["get", "list", "patch"]),
    ("", "nodes/proxy", &["get", "create"]),
    ("", "pods", &["create", "patch", "update", "delete"]),
    ("", "pods/exec", &["get", "create"]),
    ("", "pods/eviction", &["create"]),
    ("", "pods/attach", &["create"]),
    ("", "pods/portforward", &["create"]),
    ("", "pods/ephemeralcontainers", &["patch", "update"]),
    ("", "serviceaccounts/token", &["create"]),
    ("", "serviceaccounts", &["impersonate", "update"]),
    ("", "users", &["impersonate"]),
    ("", "groups", &["impersonate"]),
    (
        "",
        "persistentvolumes",
        &["get", "list", "create", "delete"],
    ),
    (
        "rbac.authorization.k8s.io",
        "roles",
        &["escalate", "bind", "update"],
    ),
    (
        "rbac.authorization.k8s.io",
        "clusterroles",
        &["get", "list", "create", "patch", "escalate", "bind"],
    ),
    (
        "rbac.authorization.k8s.io",
        "clusterrolebindings",
        &["get", "list", "create", "patch"],
    ),
    ("batch", "jobs", &["patch", "update", "deletecollection"]),
    ("batch", "cronjobs", &["create", "patch"]),
    ("apps", "deployments", &["get", "create", "patch"]),
    (
        "apiextensions.k8s.io",
        "customresourcedefinitions",
        &["get", "create", "patch", "delete"],
    ),
    (
        "admissionregistration.k8s.io",
        "validatingwebhookconfigurations",
        &["get", "create", "patch", "delete"],
    ),
];

async fn allowed(server: &Server, group: &str, resource: &str, verb: &str) -> bool {
    let (resource, subresource) = match resource.split_once('/') {
        Some((resource, subresource)) => (resource, Some(subresource.to_owned())),
        None => (resource, None),
    };
    let attributes = ResourceAttributes {
        group: Some(group.to_owned()),
        resource: Some(resource.to_owned()),
        subresource,
        verb: Some(verb.to_owned()),
        namespace: Some("anywhere".to_owned()),
        ..ResourceAttributes::default()
    };
    let review = SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: Some(OPERATOR.to_owned()),
            groups: Some(
                [
                    "system:serviceaccounts",
                    "system:serviceaccounts:alustan-system",
                    "system:authenticated",
                ]
                .map(str::to_owned)
                .to_vec(),
            ),
            resource_attributes: Some(attributes),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    };
    let reviews: Api<SubjectAccessReview> = Api::all(server.client().await);
    let review = reviews
        .create(&PostParams::default(), &review)
        .await
        .unwrap();
    review.status.unwrap().allowed
}

#[tokio::test]
async fn every_call_of_the_operator_is_allowed_and_others_are_refused() {
    let server = Server::shared().await;
    for (wanted, table) in [(true, &NEEDED[..]), (false, &REFUSED[..])] {
        for (group, resource, verbs) in table {
            for verb in *verbs {
                let allowed = allowed(server, group, resource, verb).await;
                assert_eq!(allowed, wanted, "{verb} {resource} of {group:?}");
            }
        }
    }
}

/// The role grants nothing that is not in the table.
#[tokio::test]
async fn the_role_is_not_wider_than_the_calls() {
    let server = Server::shared().await;
    let roles: Api<ClusterRole> = Api::all(server.client().await);
    let role = roles.get("alustan-controller").await.unwrap();
    let needed: BTreeSet<_> = NEEDED
        .iter()
        .flat_map(|(group, resource, verbs)| {
            verbs
                .iter()
                .map(move |verb| [*group, *resource, *verb].map(str::to_owned))
        })
        .collect();
    for rule in role.rules.unwrap() {
        assert_eq!(rule.non_resource_urls, None);
        for group in rule.api_groups.iter().flatten() {
            for resource in rule.resources.iter().flatten() {
                for verb in &rule.verbs {
                    let grant = [group, resource, verb].map(Clone::clone);
                    assert!(
                        needed.contains(&grant),
                        "{grant:?} is granted and not needed"
                    );
                }
            }
        }
    }
}

async fn apply<K>(space: &Space, name: &str, object: Value) -> Result<K, kube::Error>
where
    K: kube::Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
        + serde::de::DeserializeOwned
        + Clone
        + std::fmt::Debug,
{
    let client = space.server.client_as(OPERATOR).await;
    let api: Api<K> = Api::namespaced(client, &space.namespace);
    let mut object = object;
    object["apiVersion"] = "rbac.authorization.k8s.io/v1".into();
    object["kind"] = K::kind(&()).into();
    object["metadata"] = json!({"name": name});
    let parameters = PatchParams::apply("tests");
    api.patch(name, &parameters, &Patch::Apply(&object)).await
}

#[tokio::test]
async fn the_operator_cannot_grant_what_it_has_not() {
    let space = Space::new().await;
    let rule = |group: &str, resource: &str, verb: &str| json!({"rules": [{"apiGroups": [group], "resources": [resource], "verbs": [verb]}]});
    for (group, resource, verb) in [
        ("", "pods", "create"),
        ("", "pods/exec", "create"),
        ("", "secrets", "*"),
        ("*", "*", "*"),
        ("alustan.io", "terraforms", "update"),
    ] {
        let made = apply::<Role>(&space, "greedy", rule(group, resource, verb)).await;
        let refused = made.expect_err("a role beyond its own");
        assert!(
            refused.to_string().contains("is attempting to grant"),
            "{refused}"
        );
    }
    let binding = |role: &str| {
        json!({
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role,
            },
            "subjects": [{"kind": "ServiceAccount", "name": "x", "namespace": space.namespace}],
        })
    };
    for role in ["cluster-admin", "system:node"] {
        let made = apply::<RoleBinding>(&space, "greedy", binding(role)).await;
        let refused = made.expect_err("a binding beyond its own");
        assert!(
            refused.to_string().contains("is attempting to grant"),
            "{refused}"
        );
    }
}

/// What is granted for `objectRef` and the like is summed up by a controller of Kubernetes.
#[tokio::test]
async fn the_manifests_apply_again_after_something_was_granted() {
    let server = Server::shared().await;
    let name = "alustan-controller-objects";
    let sum = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": name},
        "rules": [{"apiGroups": ["example.com"], "resources": ["examples"], "verbs": ["get"]}],
    });
    let api: Api<ClusterRole> = Api::all(server.client().await);
    let controller = PatchParams::apply("clusterrole-aggregation-controller").force();
    api.patch(name, &controller, &Patch::Apply(&sum))
        .await
        .unwrap();
    let again = ["apply", "--server-side", "-k", "deploy/kustomize/base"];
    server.kubectl(&again).unwrap();
}
