//! Rights of the operator's role: the role allows every call that the operator makes, and no other call.

use std::collections::BTreeSet;

use alustan_tests::rights::granted;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use k8s_openapi::api::rbac::v1::{ClusterRole, Role, RoleBinding};
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::server::{OPERATOR, Server};
use crate::space::Space;

/// Calls of the operator: group, resource and verbs, each with its purpose.
const NEEDED: [(&str, &str, &[&str]); 16] = [
    // Reconciles resources, sets finalizers, and reads the metadata of resources that it cannot parse.
    (
        "alustan.io",
        "terraforms",
        &["get", "list", "watch", "patch"],
    ),
    ("alustan.io", "terraforms/status", &["patch"]),
    // Writes the records of finished runs, and deletes old ones.
    (
        "alustan.io",
        "terraformruns",
        &["list", "create", "patch", "delete"],
    ),
    // Run records, run reports, pins, states, outputs, image pull Secrets and credentials are Secrets.
    (
        "",
        "secrets",
        &["get", "list", "watch", "create", "patch", "delete"],
    ),
    // ConfigMaps contain scripts, variables and outputs.
    (
        "",
        "configmaps",
        &["get", "list", "watch", "create", "patch", "delete"],
    ),
    // `get` reads the uid of a namespace, because the digest in the image tag covers the uid. `patch` sets the label
    // `alustan.io/holds-state`.
    ("", "namespaces", &["get", "patch"]),
    (
        "",
        "serviceaccounts",
        &["get", "list", "watch", "create", "patch", "delete"],
    ),
    (
        "",
        "persistentvolumeclaims",
        &["get", "list", "watch", "create", "patch", "delete"],
    ),
    // A PodDisruptionBudget protects the pod of an apply from eviction.
    (
        "policy",
        "poddisruptionbudgets",
        &["get", "list", "watch", "create", "patch", "delete"],
    ),
    (
        "rbac.authorization.k8s.io",
        "roles",
        &["get", "list", "watch", "create", "patch", "delete"],
    ),
    (
        "rbac.authorization.k8s.io",
        "rolebindings",
        &["get", "list", "watch", "create", "patch", "delete"],
    ),
    (
        "batch",
        "jobs",
        &["get", "list", "watch", "create", "delete"],
    ),
    ("", "pods", &["list", "watch"]),
    // Reads the cause of a failed build from the log of the build pod.
    ("", "pods/log", &["get"]),
    // Lists the Job controller's events about a Job without a pod, and publishes the operator's events.
    ("events.k8s.io", "events", &["list", "create"]),
    // Kubernetes grants this right to every authenticated user.
    (
        "authorization.k8s.io",
        "selfsubjectaccessreviews",
        &["create"],
    ),
];

/// Calls that an attacker with the operator's token could use. The role must not allow them.
const REFUSED: [(&str, &str, &[&str]); 27] = [
    (
        "alustan.io",
        "terraforms",
        &["create", "update", "delete", "deletecollection"],
    ),
    (
        "alustan.io",
        "terraformruns",
        &["update", "deletecollection"],
    ),
    ("", "secrets", &["update", "deletecollection"]),
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
        "coordination.k8s.io",
        "leases",
        &[
            "get", "list", "watch", "create", "update", "patch", "delete",
        ],
    ),
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
    allowed_in(server, ("anywhere", None), group, resource, verb).await
}

/// Returns true if the operator may call `verb` in `namespace`. With `name`, the call is on the object of this name.
async fn allowed_in(
    server: &Server,
    (namespace, name): (&str, Option<&str>),
    group: &str,
    resource: &str,
    verb: &str,
) -> bool {
    let (resource, subresource) = match resource.split_once('/') {
        Some((resource, subresource)) => (resource, Some(subresource.to_owned())),
        None => (resource, None),
    };
    let attributes = ResourceAttributes {
        group: Some(group.to_owned()),
        resource: Some(resource.to_owned()),
        subresource,
        verb: Some(verb.to_owned()),
        namespace: Some(namespace.to_owned()),
        name: name.map(str::to_owned),
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
                let allowed = allowed(&server, group, resource, verb).await;
                assert_eq!(allowed, wanted, "{verb} {resource} of {group:?}");
            }
        }
    }
}

#[tokio::test]
async fn operator_may_use_only_its_own_lease() {
    let server = Server::shared().await;
    let system = "alustan-system";
    for (place, verb, wanted) in [
        ((system, Some("alustan")), "get", true),
        ((system, Some("alustan")), "update", true),
        ((system, None), "create", true),
        ((system, Some("alustan")), "delete", false),
        ((system, Some("another")), "get", false),
        ((system, Some("another")), "update", false),
        ((system, None), "list", false),
        (("kube-system", Some("alustan")), "update", false),
    ] {
        let group = "coordination.k8s.io";
        let allowed = allowed_in(&server, place, group, "leases", verb).await;
        assert_eq!(allowed, wanted, "{verb} {place:?}");
    }
}

/// The `ClusterRole` grants only rights in [`NEEDED`].
#[tokio::test]
async fn role_grants_only_needed_rights() {
    let server = Server::shared().await;
    let api: Api<ClusterRole> = Api::all(server.client().await);
    let role = api.get("alustan-controller").await.unwrap();
    let needed: BTreeSet<_> = NEEDED
        .iter()
        .flat_map(|(group, resource, verbs)| {
            verbs
                .iter()
                .map(move |verb| [*group, *resource, *verb].map(str::to_owned))
        })
        .collect();
    let rules = role.rules.unwrap();
    assert!(rules.iter().all(|rule| rule.non_resource_urls.is_none()));
    for right in granted(&rules) {
        let named = [&right.group, &right.resource, &right.verb].map(Clone::clone);
        assert!(needed.contains(&named), "{right} is granted and not needed");
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
async fn operator_cannot_grant_rights_that_it_lacks() {
    let space = Space::new().await;
    let rule = |group: &str, resource: &str, verb: &str| json!({"rules": [{"apiGroups": [group], "resources": [resource], "verbs": [verb]}]});
    for (group, resource, verb) in [
        ("", "pods", "create"),
        ("", "pods/exec", "create"),
        ("", "secrets", "*"),
        ("*", "*", "*"),
        ("alustan.io", "terraforms", "update"),
    ] {
        let refused = apply::<Role>(&space, "greedy", rule(group, resource, verb))
            .await
            .expect_err("a role beyond its own");
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
        let refused = apply::<RoleBinding>(&space, "greedy", binding(role))
            .await
            .expect_err("a binding beyond its own");
        assert!(
            refused.to_string().contains("is attempting to grant"),
            "{refused}"
        );
    }
}

/// The aggregation controller of Kubernetes owns the rules of the cluster role `alustan-controller-objects`. Simulates this controller, and
/// asserts that the manifests apply again without a conflict.
#[tokio::test]
async fn manifests_apply_again_after_aggregation_of_rights() {
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
