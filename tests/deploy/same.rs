//! The chart and the kustomize overlays render the same objects.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value};

use crate::rendered::{Id, kustomize, objects, root, usual};

/// Labels that only identify the tool and the version that created an object.
const MAKERS: [&str; 3] = [
    "app.kubernetes.io/managed-by",
    "app.kubernetes.io/version",
    "helm.sh/chart",
];
/// Labels that identify a release.
const RELEASES: [&str; 2] = ["app.kubernetes.io/instance", "app.kubernetes.io/name"];

/// Removes the namespace from the `id` of a cluster-scoped object. kubectl's kustomize sets a namespace on cluster-scoped objects of kinds
/// that it does not know. This namespace has no effect.
fn place(mut id: Id) -> Id {
    if id.kind.starts_with("ValidatingAdmissionPolicy") {
        id.namespace.clear();
    }
    id
}

/// Returns an object without the fields that depend on the tool, the release or the namespace.
fn plain(mut object: Value) -> Value {
    let metadata = object["metadata"].as_object_mut().unwrap();
    metadata.remove("namespace");
    if let Some(labels) = metadata.get_mut("labels").and_then(Value::as_object_mut) {
        labels.retain(|label, _| !MAKERS.contains(&label.as_str()));
    }
    if let Some(notes) = metadata
        .get_mut("annotations")
        .and_then(Value::as_object_mut)
    {
        notes.remove("helm.sh/resource-policy");
    }
    simplify(&mut object);
    let metadata = object["metadata"].as_object_mut().unwrap();
    metadata.retain(|_, value| value.as_object().is_none_or(|object| !object.is_empty()));
    object
}

fn simplify(value: &mut Value) {
    match value {
        Value::Object(map) => {
            for label in RELEASES {
                map.remove(label);
            }
            map.values_mut().for_each(simplify);
        }
        Value::Array(list) => {
            list.iter_mut().for_each(simplify);
            // Sorts named entries (variables, volumes, mounts, ports) by name, because their order has no effect.
            if list.iter().all(|entry| entry["name"].is_string()) {
                list.sort_by_key(|entry| entry["name"].to_string());
            }
        }
        _ => {}
    }
}

/// Asserts that kustomize and helm render the same objects.
fn compare(kustomize: &str, helm: &str) {
    let all = |text: &str| -> BTreeMap<Id, Value> {
        let objects = objects(text).into_iter();
        // helm creates the namespace of a release before the release.
        objects
            .filter(|(id, _)| id.kind != "Namespace")
            .map(|(id, object)| (place(id), plain(object)))
            .collect()
    };
    let (left, right) = (all(kustomize), all(helm));
    let names = |all: &BTreeMap<Id, Value>| all.keys().map(Id::to_string).collect::<Vec<_>>();
    assert_eq!(names(&left), names(&right), "kustomize, helm");
    for ((id, left), right) in left.iter().zip(right.values()) {
        let none = Map::new();
        let part = |object: &'_ Value, key: &str| object.get(key).cloned();
        let keys = left.as_object().unwrap_or(&none).keys();
        for key in keys.chain(right.as_object().unwrap_or(&none).keys()) {
            assert_eq!(part(left, key), part(right, key), "{id}: {key}");
        }
    }
}

/// Returns the relative path from `folder` to `to`. kustomize accepts relative paths only.
fn from(folder: &Path, to: &Path) -> String {
    let up = folder.canonicalize().unwrap().components().count() - 1;
    let to = to.canonicalize().unwrap();
    format!(
        "{}{}",
        "../".repeat(up),
        to.strip_prefix("/").unwrap().display()
    )
}

/// Returns the chart values that correspond to the overlay `name`.
fn values(name: &str) -> String {
    std::fs::read_to_string(root().join(format!("deploy/helm/values/{name}.yaml"))).unwrap()
}

#[test]
fn release_without_values_equals_the_base() {
    compare(&kustomize("deploy/kustomize/base"), &usual(""));
}

#[test]
fn each_overlay_equals_a_release_with_its_values() {
    let mut seen = 0;
    for entry in std::fs::read_dir(root().join("deploy/kustomize/overlays")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        println!("overlay {name}");
        let overlay = kustomize(&format!("deploy/kustomize/overlays/{name}"));
        compare(&overlay, &usual(&values(&name)));
        seen += 1;
    }
    assert_eq!(seen, 3);
}

#[test]
fn metacontroller_equals_the_overlay_with_and_without_tls() {
    let plain = "metacontroller: {enabled: true}";
    compare(&kustomize("deploy/metacontroller"), &usual(plain));
    let folder = tempfile::tempdir().unwrap();
    let deploy = from(folder.path(), &root().join("deploy"));
    let text = format!(
        "resources: [{deploy}/metacontroller]\ncomponents: [{deploy}/metacontroller/tls]\n"
    );
    std::fs::write(folder.path().join("kustomization.yaml"), text).unwrap();
    let with_tls = kustomize(folder.path().to_str().unwrap());
    assert!(with_tls.contains("[::]:8443"), "IPv6 and IPv4: {with_tls}");
    compare(
        &with_tls,
        &usual("metacontroller: {enabled: true, tls: {enabled: true}}"),
    );
}

#[test]
fn build_namespace_equals_the_overlay() {
    let folder = tempfile::tempdir().unwrap();
    let deploy = from(folder.path(), &root().join("deploy/kustomize"));
    let of = |part: &str| format!("{deploy}/components/{part}");
    let text = format!(
        "resources: [{deploy}/base]\ncomponents: [{}, {}]\n",
        of("build-namespace"),
        of("network-policies")
    );
    std::fs::write(folder.path().join("kustomization.yaml"), text).unwrap();
    let operator = kustomize(folder.path().to_str().unwrap());
    let builds = kustomize("deploy/kustomize/builds");
    let both = format!("{operator}\n---\n{builds}");
    let values = "builder: {namespace: alustan-builds}\nnetworkPolicy: {enabled: true}";
    compare(&both, &usual(values));
}

/// The SCC `restricted-v2` refuses pods that set a user outside of the range of the namespace.
#[test]
fn openshift_component_equals_the_release_and_sets_no_user() {
    let folder = tempfile::tempdir().unwrap();
    let deploy = from(folder.path(), &root().join("deploy/kustomize"));
    let values = "podUser: none\nbuilder: {kind: append}";
    let openshift = format!("{deploy}/components/openshift");
    for (components, more) in [
        (openshift.clone(), ""),
        (
            format!("{deploy}/components/page, {openshift}"),
            "\npage: {enabled: true}",
        ),
    ] {
        let text = format!("resources: [{deploy}/base]\ncomponents: [{components}]\n");
        std::fs::write(folder.path().join("kustomization.yaml"), text).unwrap();
        let overlay = kustomize(folder.path().to_str().unwrap());
        for field in ["runAsUser", "runAsGroup", "fsGroup"] {
            assert!(!overlay.contains(field), "{field}: {overlay}");
        }
        compare(&overlay, &usual(&format!("{values}{more}")));
    }
    assert!(usual("podUser: 1000650000").contains("runAsUser: 1000650000\n"));
}

#[test]
fn page_equals_the_components() {
    let folder = tempfile::tempdir().unwrap();
    let deploy = from(folder.path(), &root().join("deploy/kustomize"));
    let overlay = |components: &str| {
        let text = format!("resources: [{deploy}/base]\ncomponents: [{components}]\n");
        std::fs::write(folder.path().join("kustomization.yaml"), text).unwrap();
        kustomize(folder.path().to_str().unwrap())
    };
    let page = format!("{deploy}/components/page");
    compare(&overlay(&page), &usual("page: {enabled: true}"));
    let proxy = "page: {enabled: true, signIn: proxy, tls: {secretName: alustan-page-tls}, proxy: {clientCASecret: alustan-page-proxy-ca}}";
    compare(&overlay(&format!("{page}, {page}-proxy")), &usual(proxy));
}

#[test]
fn monitoring_equals_the_overlay() {
    let base = kustomize("deploy/kustomize/base");
    let monitoring = kustomize("deploy/monitoring");
    let values = "monitoring: {podMonitor: {enabled: true}, prometheusRule: {enabled: true}, dashboard: {enabled: true}}";
    compare(&format!("{base}\n---\n{monitoring}"), &usual(values));
}

#[test]
fn network_policy_of_a_namespace_equals_the_overlay() {
    let helm = usual("networkPolicy: {enabled: true, namespaces: [team]}");
    let of_team = |(id, _): &(Id, Value)| id.namespace == "team";
    let helm: Vec<_> = objects(&helm).into_iter().filter(of_team).collect();
    let kustomize: Vec<_> = objects(&kustomize("deploy/kustomize/namespace"))
        .into_iter()
        .collect();
    assert_eq!((helm.len(), kustomize.len()), (1, 1));
    let (helm, kustomize) = (plain(helm[0].1.clone()), plain(kustomize[0].1.clone()));
    assert_eq!(helm["spec"], kustomize["spec"]);
}

/// The rights in each watched namespace come from a separate kustomization, because kustomize has no loops.
#[test]
fn namespaced_operator_equals_the_overlay() {
    let folder = tempfile::tempdir().unwrap();
    let deploy = from(folder.path(), &root().join("deploy/kustomize"));
    let write = |name: &str, text: String| {
        let folder = folder.path().join(name);
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("kustomization.yaml"), text).unwrap();
        kustomize(folder.to_str().unwrap())
    };
    let patch = "patches:
  - patch: |-
      apiVersion: apps/v1
      kind: Deployment
      metadata: {name: alustan-controller}
      spec: {template: {spec: {containers: [{name: controller, env: [{name: ALUSTAN_WATCH_NAMESPACES, value: 'team,other'}]}]}}}
  - target: {kind: ValidatingAdmissionPolicyBinding}
    patch: |-
      - {op: replace, path: /spec/matchResources/namespaceSelector/matchExpressions/0/values, value: [team, other]}";
    let mut all = vec![write(
        "operator",
        format!(
            "resources: [../{deploy}/base]\ncomponents: [../{deploy}/components/namespaced]\n{patch}\n"
        ),
    )];
    for name in ["team", "other"] {
        let text = format!("namespace: {name}\nresources: [../{deploy}/watched]\n");
        all.push(write(name, text));
    }
    compare(
        &all.join("\n---\n"),
        &usual("watchNamespaces: [team, other]"),
    );
}
