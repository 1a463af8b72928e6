//! Objects as the operator sends them to the API server.

use std::collections::BTreeSet;

use alustan_api::{Architecture, BuilderKind, Terraform};
use alustan_core::objects::secrets;
use alustan_core::step::{Decision, Object, Step};
use k8s_openapi::ByteString;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{PodSpec, Secret, VolumeMount};
use kube_core::ResourceExt;
use rstest::rstest;
use serde_json::{Value, json};

use crate::fixtures::{Edit as _, terraform};
use crate::world::{PodEvent, Stage, World};

/// Jobs and other objects that the operator creates.
pub(super) struct CreatedObjects {
    pub(super) jobs: Vec<Job>,
    pub(super) objects: Vec<Object>,
}

impl CreatedObjects {
    pub(super) fn of(tf: Terraform) -> Self {
        Self::in_world(World::with(tf))
    }

    pub(super) fn in_world(mut world: World) -> Self {
        let mut created = Self {
            jobs: Vec::new(),
            objects: Vec::new(),
        };
        for _ in 0..40 {
            let reconciled = world.reconcile();
            created.take(reconciled.decision.clone());
            if !world.advance_builds(None)
                && !world.advance_pod(0, PodEvent::Progress)
                && world.is_ready()
            {
                world.now = reconciled.decision.requeue_at.unwrap_or(world.now);
            }
        }
        created
    }

    /// Returns all objects that the operator creates until the deleted resource is gone.
    pub(super) fn by_destroying(mut world: World) -> Self {
        let mut created = Self {
            jobs: Vec::new(),
            objects: Vec::new(),
        };
        while world.tf.is_some() {
            let reconciled = world.reconcile();
            created.take(reconciled.decision.clone());
            if !world.advance_pod(0, PodEvent::Progress) && !reconciled.wrote {
                world.now = reconciled.decision.requeue_at.unwrap_or(world.now);
            }
        }
        created
    }

    fn take(&mut self, decision: Decision) {
        let started = decision.start.map(|start| start.steps).unwrap_or_default();
        for step in decision.steps.into_iter().chain(started) {
            match step {
                Step::CreateJob(job) => self.jobs.push(*job),
                Step::Ensure(object) => self.objects.push(*object),
                Step::CreateRecord(secret) => self.objects.push(Object::Secret(*secret)),
                _ => {}
            }
        }
    }

    pub(super) fn job(&self, part: &str) -> &Job {
        self.jobs
            .iter()
            .find(|job| job.name_any().contains(part))
            .unwrap()
    }
}

/// Compares an object with a YAML snapshot in which placeholders replace digests and the architecture.
macro_rules! assert_made {
    ($object:expr) => {
        insta::assert_yaml_snapshot!($crate::stories::objects::plain(
            serde_json::to_value($object).unwrap()
        ))
    };
}

pub(super) use assert_made;

pub(super) fn plain(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(plain_text(&text)),
        Value::Array(items) => items.into_iter().map(plain).collect(),
        Value::Object(fields) => fields
            .into_iter()
            .map(|(name, value)| (name, plain(value)))
            .collect(),
        scalar => scalar,
    }
}

/// Replaces each digest with `<digest>`. A digest has at least twenty hexadecimal digits.
fn plain_text(text: &str) -> String {
    if text == Architecture::own().as_str() {
        return "<architecture>".to_owned();
    }
    let mut plain = String::new();
    for part in text.split_inclusive(|letter: char| !letter.is_ascii_hexdigit()) {
        let digits = part.trim_end_matches(|letter: char| !letter.is_ascii_hexdigit());
        if digits.len() < 20 {
            plain.push_str(part);
        } else {
            plain.push_str("<digest>");
            plain.push_str(&part[digits.len()..]);
        }
    }
    plain
}

pub(super) fn pod(job: &Job) -> PodSpec {
    job.spec.clone().unwrap().template.spec.unwrap()
}

/// Returns a resource that sets all fields that affect pods.
pub(super) fn rich() -> Terraform {
    terraform()
        .with("/containerRegistry/baseImage", "elsewhere.test/base:1")
        .with("/containerRegistry/insecure", true)
        .with(
            "/containerRegistry/builder",
            json!({ "image": "registry.test/builder:1" }),
        )
        .with("/cache/storageClassName", "fast")
}

/// Sets builder kind `Append`.
pub(super) fn appended(tf: Terraform) -> Terraform {
    tf.with("/containerRegistry/builder", json!({ "kind": "Append" }))
}

fn rich_world() -> World {
    let mut world = World::with(rich());
    world.settings.ca_bundle = Some("-----BEGIN CERTIFICATE-----\n".to_owned());
    let proxy = (
        "HTTPS_PROXY".to_owned(),
        "http://proxy.test:3128".to_owned(),
    );
    world.settings.environment.extend([proxy]);
    world
        .settings
        .insecure_registries
        .push("registry.test:5000".to_owned());
    world
}

#[test]
fn the_job_of_a_build() {
    assert_made!(CreatedObjects::of(terraform()).job("build"));
}

#[test]
fn job_of_a_build_by_append() {
    assert_made!(CreatedObjects::of(appended(terraform())).job("build"));
}

#[test]
fn job_of_a_build_by_append_on_a_foreign_base() {
    let foreign = terraform().with("/containerRegistry/baseImage", "elsewhere.test/base:1");
    assert_made!(CreatedObjects::of(appended(foreign)).job("build"));
}

#[test]
fn operator_builder_is_used_without_builder_in_spec() {
    let built_by = |tf: Terraform| {
        let mut world = World::with(tf);
        world.settings.builder = BuilderKind::Append;
        let pod = pod(CreatedObjects::in_world(world).job("build"));
        pod.containers[0].args == Some(vec!["build".to_owned()])
    };
    assert!(built_by(terraform()));
    let kaniko = json!({ "kind": "Kaniko" });
    let image = json!({ "image": "registry.test/builder:1" });
    let cache = json!({ "cacheRepository": "registry.test/layers" });
    let lifetime = json!({ "cacheLifetime": "48h" });
    for builder in [kaniko, image, cache, lifetime] {
        assert!(!built_by(
            terraform().with("/containerRegistry/builder", builder)
        ));
    }
}

#[test]
fn the_job_of_a_build_from_a_foreign_base() {
    assert_made!(CreatedObjects::in_world(rich_world()).job("build"));
}

#[test]
fn the_job_of_an_apply() {
    assert_made!(CreatedObjects::of(terraform()).job("apply"));
}

#[test]
fn the_job_of_a_drift_check() {
    assert_made!(CreatedObjects::of(terraform()).job("drift"));
}

/// docs/sizing.md has these numbers.
#[test]
fn resource_at_rest_has_eight_objects_of_the_operator_and_the_report() {
    let created = |world: World| {
        let created = CreatedObjects::in_world(world);
        let names = created.objects.iter().map(super::object_name);
        names
            .filter(|name| !name.starts_with("Namespace"))
            .collect::<BTreeSet<_>>()
    };
    let once = created(World::with(terraform()));
    assert_eq!(
        once.iter().collect::<Vec<_>>(),
        [
            "Account web-runner",
            "Binding web-runner",
            "Budget web-runner",
            "Role web-runner",
            "Secret web-outputs",
            "Secret web-pin",
            "Secret web-run",
            "Secret web-state",
        ]
    );
    let mut world = World::applied();
    world.edit(|tf| tf.with_variable("size", 1));
    let again = created(world);
    assert_eq!(
        again.difference(&once).collect::<Vec<_>>(),
        [
            "Claim web-cache",
            "Secret web-state-slot-0",
            "Secret web-state-slot-1",
        ]
    );
}

#[test]
fn job_names_are_valid_for_short_and_long_resource_names() {
    for name in ["w", &"w".repeat(50), "web-2"] {
        let mut world = World::with(terraform().named(name));
        world.run_to(Stage::Planning);
        let job = world.jobs.keys().next().unwrap().clone();
        assert!(job.starts_with(name) && job.len() <= 63, "{job}");
    }
}

#[test]
fn the_role_of_a_runner() {
    let created = CreatedObjects::of(terraform());
    let role = created.objects.iter().find_map(|object| match object {
        Object::Role(role) => Some(role),
        _ => None,
    });
    assert_made!(role.unwrap());
}

#[test]
fn namespace_is_labelled_once_before_the_first_apply() {
    let created = CreatedObjects::of(terraform());
    let marks: Vec<_> = created
        .objects
        .iter()
        .filter_map(|object| match object {
            Object::Namespace(namespace) => Some(&namespace.metadata),
            _ => None,
        })
        .collect();
    assert_eq!(marks.len(), 1, "not again for a look for drift");
    assert_eq!(marks[0].name.as_deref(), Some("team"));
    let labels = marks[0].labels.as_ref().unwrap();
    assert_eq!(labels["alustan.io/holds-state"], "true");
    assert_eq!(labels.len(), 1);
    let destroyed = CreatedObjects::by_destroying({
        let mut world = World::applied();
        world.delete();
        world
    });
    let marks = |object: &Object| matches!(object, Object::Namespace(_));
    assert!(!destroyed.objects.iter().any(marks));
}

#[rstest]
#[case::new("", false)]
#[case::never_written(r#"{"current": null, "previous": null, "writer": "w"}"#, false)]
#[case::written(r#"{"current": {"version": 1}, "previous": null}"#, true)]
#[case::unreadable("{", true)]
fn pointer_shows_whether_a_state_version_exists(#[case] content: &str, #[case] has_version: bool) {
    let data = [("pointer".to_owned(), ByteString(content.into()))];
    let pointer = Secret {
        data: Some(data.into()),
        ..Secret::default()
    };
    assert_eq!(secrets::has_version(&pointer), has_version);
    assert!(!secrets::has_version(&Secret::default()));
}

#[test]
fn the_claim_of_the_cache() {
    let mut world = World::with(rich());
    world.settle();
    world.edit(|tf| tf.with_variable("size", 1));
    let created = CreatedObjects::in_world(world);
    let claim = created.objects.iter().find_map(|object| match object {
        Object::Claim(claim) => Some(claim),
        _ => None,
    });
    assert_made!(claim.unwrap());
}

#[test]
fn resource_without_cache_uses_an_empty_dir() {
    let created = CreatedObjects::of(terraform().with("/cache/enabled", false));
    assert!(
        !created
            .objects
            .iter()
            .any(|object| matches!(object, Object::Claim(_)))
    );
    for job in &created.jobs {
        let volumes = pod(job).volumes.unwrap();
        let cache = volumes
            .iter()
            .find(|volume| volume.name == "cache")
            .unwrap();
        assert!(cache.empty_dir.is_some());
    }
}

#[test]
fn objects_have_labels_and_no_owner_references() {
    let created = CreatedObjects::in_world(rich_world());
    assert!(
        created
            .jobs
            .iter()
            .all(|job| job.metadata.owner_references.is_none())
    );
    for object in &created.objects {
        let meta = match object {
            Object::Secret(secret) => &secret.metadata,
            Object::ConfigMap(map) => &map.metadata,
            Object::Claim(claim) => &claim.metadata,
            Object::Account(account) => &account.metadata,
            Object::Role(role) => &role.metadata,
            Object::Binding(binding) => &binding.metadata,
            Object::Budget(budget) => &budget.metadata,
            Object::Namespace(_) => continue,
        };
        assert!(meta.owner_references.is_none(), "{meta:?}");
        let labels = meta.labels.as_ref().unwrap();
        assert_eq!(labels["alustan.io/terraform"], "web");
        assert_eq!(labels["alustan.io/uid"], "uid-of-web");
        assert_eq!(labels["app.kubernetes.io/managed-by"], "alustan");
    }
}

#[test]
fn variables_are_in_no_job() {
    let created = CreatedObjects::of(terraform().with_variable("password", "hunter2"));
    for job in &created.jobs {
        assert!(
            !serde_json::to_string(job).unwrap().contains("hunter2"),
            "{}",
            job.name_any()
        );
    }
}

#[test]
fn state_secrets_are_applied_without_data() {
    let created = CreatedObjects::of(terraform());
    for object in &created.objects {
        if let Object::Secret(secret) = object
            && secret.name_any().contains("-state")
        {
            assert!(secret.data.is_none() && secret.string_data.is_none());
        }
    }
}

#[test]
fn runner_pods_have_no_init_containers_and_run_once() {
    for job in &CreatedObjects::of(rich()).jobs {
        let spec = job.spec.as_ref().unwrap();
        assert_eq!(spec.backoff_limit, Some(0));
        assert_eq!(spec.pod_replacement_policy.as_deref(), Some("Failed"));
        let is_build = job.name_any().contains("build");
        assert_eq!(spec.active_deadline_seconds.is_some(), is_build);
        assert_eq!(spec.ttl_seconds_after_finished.is_some(), is_build);
        let pod = pod(job);
        assert_eq!(pod.restart_policy.as_deref(), Some("Never"));
        assert_eq!(pod.init_containers.is_some(), is_build);
    }
}

/// Only the `prepare` container fetches private modules, with the credentials of the repository.
#[test]
fn repository_credentials_are_mounted_only_in_prepare() {
    let tf = terraform()
        .with(
            "/gitRepo/sshKeySecret",
            json!({"name": "deploy", "key": "id"}),
        )
        .with("/gitRepo/credentialsSecret", json!({"name": "login"}))
        .with("/gitRepo/caBundle", "PEM");
    let created = CreatedObjects::of(tf);
    let pod_of = |part| serde_json::to_value(pod(created.job(part))).unwrap();
    let build = pod_of("build");
    let volumes = build["volumes"].as_array().unwrap();
    let volume = volumes
        .iter()
        .find(|volume| volume["name"] == "git")
        .unwrap();
    let sources = &volume["projected"]["sources"];
    assert_eq!(sources[0]["secret"]["name"], "deploy");
    assert_eq!(
        sources[0]["secret"]["items"][0],
        json!({"key": "id", "path": "ssh-key"})
    );
    assert_eq!(sources[1]["secret"]["name"], "login");
    assert!(
        sources
            .as_array()
            .unwrap()
            .iter()
            .all(|source| source["secret"]["optional"] == true)
    );
    let sees = |container: &Value| container["volumeMounts"].to_string().contains("\"git\"");
    let [pull, prepare] = [0_usize, 1].map(|at| &build["initContainers"][at]);
    assert_eq!(
        (&pull["name"], &prepare["name"]),
        (&json!("pull"), &json!("prepare"))
    );
    assert!(sees(prepare) && !sees(pull) && !sees(&build["containers"][0]));
    let environment = prepare["env"].to_string();
    for name in [
        "ALUSTAN_GIT_CREDENTIALS",
        "ALUSTAN_GIT_URL",
        "ALUSTAN_GIT_CA_BUNDLE",
    ] {
        assert!(environment.contains(name), "{environment}");
    }
    let apply = pod_of("apply").to_string();
    assert!(
        !apply.contains("deploy") && !apply.contains("login"),
        "{apply}"
    );
    let none = serde_json::to_string(&pod(CreatedObjects::of(terraform()).job("build"))).unwrap();
    assert!(!none.contains("ALUSTAN_GIT"), "{none}");
}

/// Returns the names of the volumes that `container` of `pod` mounts, with `:ro` if it cannot write to them.
fn mounted(pod: &PodSpec, container: &str) -> Vec<String> {
    let mut containers = pod.init_containers.iter().flatten().chain(&pod.containers);
    let container = containers
        .find(|candidate| candidate.name == container)
        .unwrap();
    let name = |mount: &VolumeMount| {
        let path = mount.sub_path.as_ref().map(|path| format!("/{path}"));
        let access = mount.read_only.map(|_| ":ro").unwrap_or_default();
        format!("{}{}{access}", mount.name, path.unwrap_or_default())
    };
    let mounts = container.volume_mounts.iter().flatten();
    mounts.map(name).collect()
}

#[rstest]
#[case::kaniko("Kaniko", &["inject", "pull", "prepare", "build"], None)]
#[case::append("Append", &["inject", "build", "prepare"], Some("build/handover"))]
fn init_shares_only_layers_with_containers_of_the_registry(
    #[case] kind: &str,
    #[case] containers: &[&str],
    #[case] handover: Option<&str>,
) {
    let tf = terraform()
        .with("/containerRegistry/baseImage", "elsewhere.test/base:1")
        .with("/gitRepo/credentialsSecret", json!({"name": "login"}))
        .with("/containerRegistry/builder", json!({ "kind": kind }));
    let pod = pod(CreatedObjects::of(tf).job("build"));
    let pod_containers = pod.init_containers.iter().flatten().chain(&pod.containers);
    let names: Vec<_> = pod_containers
        .map(|container| container.name.as_str())
        .collect();
    assert_eq!(names, containers);
    for name in containers.iter().copied() {
        let layers = ["build/src/providers", "build/src/module"];
        let prepare = ["cache", layers[0], layers[1], "tmp", "inject:ro", "git:ro"];
        let prepare: Vec<_> = prepare.into_iter().chain(handover).collect();
        let wanted: &[&str] = match (name, kind) {
            ("inject", _) => &["inject"],
            ("prepare", _) => &prepare,
            ("build", "Kaniko") => &["build", "docker:ro"],
            _ => &["build", "tmp-registry", "inject:ro", "docker:ro"],
        };
        assert_eq!(mounted(&pod, name), wanted, "{name}");
    }
}
