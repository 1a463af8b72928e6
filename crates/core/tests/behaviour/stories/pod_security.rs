//! All pods comply with the Pod Security Standard *restricted*, except the builder container, which complies with *baseline*
//! (<https://kubernetes.io/docs/concepts/security/pod-security-standards/>).

use alustan_core::settings::PodUser;
use k8s_openapi::api::core::v1::{
    Capabilities, Container, HostPathVolumeSource, PodSpec, SecurityContext, Volume,
};
use rstest::rstest;
use serde_json::Value;

use super::objects::{CreatedObjects, appended, pod, rich};
use crate::fixtures::{Edit as _, terraform};
use crate::world::World;

const BASELINE_CAPABILITIES: [&str; 13] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];
const RESTRICTED_VOLUMES: [&str; 8] = [
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
];

fn json(value: &impl serde::Serialize) -> Value {
    serde_json::to_value(value).unwrap()
}

fn is_true(value: &Value, pointer: &str) -> bool {
    value.pointer(pointer) == Some(&Value::Bool(true))
}

fn text<'a>(value: &'a Value, pointer: &str) -> Option<&'a str> {
    value.pointer(pointer).and_then(Value::as_str)
}

fn words(value: &Value, pointer: &str) -> Vec<String> {
    let list = value.pointer(pointer).and_then(Value::as_array);
    list.into_iter()
        .flatten()
        .filter_map(|item| item.as_str().map(str::to_owned))
        .collect()
}

fn containers(pod: &PodSpec) -> impl Iterator<Item = &Container> {
    pod.containers
        .iter()
        .chain(pod.init_containers.iter().flatten())
}

/// Returns the violations of the Pod Security Standard *baseline* by a pod.
fn baseline(pod: &PodSpec) -> Vec<String> {
    let spec = json(pod);
    let mut broken: Vec<String> = ["hostNetwork", "hostPID", "hostIPC"]
        .into_iter()
        .filter(|name| is_true(&spec, &format!("/{name}")))
        .map(str::to_owned)
        .collect();
    let volumes = pod.volumes.iter().flatten();
    broken.extend(
        volumes
            .filter(|volume| volume.host_path.is_some())
            .map(|v| v.name.clone()),
    );
    if spec.pointer("/securityContext/sysctls").is_some() {
        broken.push("sysctls".to_owned());
    }
    broken.extend(shared("pod", &spec));
    for container in containers(pod) {
        broken.extend(baseline_of(container));
    }
    broken
}

fn baseline_of(container: &Container) -> Vec<String> {
    let name = &container.name;
    let spec = json(container);
    let mut broken = shared(name, &spec);
    if is_true(&spec, "/securityContext/privileged") {
        broken.push(format!("{name}: privileged"));
    }
    let added = words(&spec, "/securityContext/capabilities/add");
    let foreign = added
        .iter()
        .filter(|capability| !BASELINE_CAPABILITIES.contains(&capability.as_str()));
    broken.extend(foreign.map(|capability| format!("{name}: capability {capability}")));
    let ports = container.ports.iter().flatten();
    if ports
        .clone()
        .any(|port| port.host_port.is_some_and(|port| port != 0))
    {
        broken.push(format!("{name}: host port"));
    }
    if text(&spec, "/securityContext/procMount").is_some_and(|mount| mount != "Default") {
        broken.push(format!("{name}: proc mount"));
    }
    broken
}

/// Returns the violations of those *baseline* rules that are the same for pods and containers. `spec`: a pod spec or a container, as JSON.
fn shared(name: &str, spec: &Value) -> Vec<String> {
    let at = |field| text(spec, &format!("/securityContext/{field}"));
    let mut broken = Vec::new();
    if is_true(spec, "/securityContext/windowsOptions/hostProcess") {
        broken.push(format!("{name}: host process"));
    }
    if at("seccompProfile/type") == Some("Unconfined") {
        broken.push(format!("{name}: seccomp"));
    }
    if at("appArmorProfile/type") == Some("Unconfined") {
        broken.push(format!("{name}: AppArmor"));
    }
    if spec.pointer("/securityContext/seLinuxOptions").is_some() {
        broken.push(format!("{name}: SELinux"));
    }
    broken
}

/// Returns the violations of the Pod Security Standard *restricted* by a pod.
pub(super) fn restricted(pod: &PodSpec) -> Vec<String> {
    let spec = json(pod);
    let mut broken = baseline(pod);
    for volume in pod.volumes.iter().flatten() {
        let json = json(volume);
        let mut kinds = json
            .as_object()
            .unwrap()
            .keys()
            .filter(|key| *key != "name");
        if !kinds.all(|kind| RESTRICTED_VOLUMES.contains(&kind.as_str())) {
            broken.push(format!("volume {}", volume.name));
        }
    }
    if spec.pointer("/securityContext/runAsUser") == Some(&Value::from(0)) {
        broken.push("pod: root".to_owned());
    }
    for container in containers(pod) {
        broken.extend(restricted_of(container, &spec));
    }
    broken
}

fn restricted_of(container: &Container, pod: &Value) -> Vec<String> {
    let name = &container.name;
    let container_json = json(container);
    let of_both = |field: &str| {
        let pointer = format!("/securityContext/{field}");
        container_json
            .pointer(&pointer)
            .or_else(|| pod.pointer(&pointer))
            .cloned()
            .unwrap_or_default()
    };
    let mut broken = Vec::new();
    if container_json.pointer("/securityContext/allowPrivilegeEscalation")
        != Some(&Value::Bool(false))
    {
        broken.push(format!("{name}: escalation"));
    }
    if of_both("runAsNonRoot") != true {
        broken.push(format!("{name}: may be root"));
    }
    if of_both("runAsUser") == 0 {
        broken.push(format!("{name}: root"));
    }
    if !matches!(
        of_both("seccompProfile/type").as_str(),
        Some("RuntimeDefault" | "Localhost")
    ) {
        broken.push(format!("{name}: no seccomp"));
    }
    if !words(&container_json, "/securityContext/capabilities/drop").contains(&"ALL".to_owned()) {
        broken.push(format!("{name}: keeps capabilities"));
    }
    let added = words(&container_json, "/securityContext/capabilities/add");
    if added
        .iter()
        .any(|capability| capability != "NET_BIND_SERVICE")
    {
        broken.push(format!("{name}: adds capabilities"));
    }
    broken
}

fn pods() -> Vec<(String, PodSpec)> {
    let plain = CreatedObjects::of(terraform());
    let rich = CreatedObjects::of(rich());
    let jobs = plain.jobs.iter().chain(&rich.jobs);
    let pods: Vec<_> = jobs
        .map(|job| (job.metadata.name.clone().unwrap(), pod(job)))
        .collect();
    assert!(
        pods.len() >= 6,
        "two builds, two applies, two looks for drift"
    );
    pods
}

#[test]
fn everything_but_the_builder_is_restricted() {
    let none: [&str; 0] = [];
    for (name, mut pod) in pods() {
        pod.containers.retain(|container| container.name != "build");
        assert_eq!(restricted(&pod), none, "{name}");
    }
}

#[test]
fn builds_by_append_are_restricted() {
    let none: [&str; 0] = [];
    let foreign = terraform().with("/containerRegistry/baseImage", "elsewhere.test/base:1");
    for tf in [terraform(), foreign] {
        let created = CreatedObjects::of(appended(tf));
        let pod = pod(created.job("build"));
        assert_eq!(restricted(&pod), none);
        assert_eq!(pod.automount_service_account_token, Some(false));
    }
}

/// Returns user, group and `fsGroup` that a pod and its containers except kaniko set.
fn users(pod: &PodSpec) -> Vec<Option<i64>> {
    let security = pod.security_context.clone().unwrap();
    assert_eq!((security.run_as_user, security.run_as_group), (None, None));
    let containers = containers(pod)
        .filter_map(|container| container.security_context.as_ref())
        .filter(|security| security.run_as_user != Some(0));
    let users = containers.flat_map(|security| [security.run_as_user, security.run_as_group]);
    users.chain([security.fs_group]).collect()
}

#[rstest]
#[case::default(PodUser::Id(65_532), Some(65_532))]
#[case::id(PodUser::Id(1_000_650_000), Some(1_000_650_000))]
#[case::set_by_the_cluster(PodUser::SetByCluster, None)]
fn pods_have_the_configured_user(#[case] user: PodUser, #[case] expected: Option<i64>) {
    let none: [&str; 0] = [];
    for (tf, is_restricted) in [(appended(rich()), true), (rich(), false)] {
        let mut world = World::with(tf);
        world.settings.pod_user = user;
        let created = CreatedObjects::in_world(world);
        assert!(created.jobs.len() >= 3);
        for job in &created.jobs {
            let pod = pod(job);
            assert!(users(&pod).len() >= 3);
            assert!(users(&pod).iter().all(|user| *user == expected));
            if is_restricted {
                assert_eq!(restricted(&pod), none);
            }
        }
    }
}

#[test]
fn the_builder_is_baseline_and_no_more() {
    let none: [&str; 0] = [];
    let mut builders = 0;
    for (name, pod) in pods() {
        assert_eq!(baseline(&pod), none, "{name}");
        if name.contains("build") {
            builders += 1;
            assert!(
                !restricted(&pod).is_empty(),
                "the check sees the builder's root"
            );
            assert_eq!(pod.automount_service_account_token, Some(false));
        }
    }
    assert_eq!(builders, 2);
}

#[test]
fn only_the_builder_writes_to_its_root_filesystem() {
    for (name, pod) in pods() {
        for container in containers(&pod) {
            let security = container.security_context.clone().unwrap_or_default();
            let is_builder = container.name == "build";
            assert_eq!(
                security.read_only_root_filesystem.is_none(),
                is_builder,
                "{name}"
            );
        }
    }
}

#[test]
fn pod_security_checks_detect_violations() {
    let container = |security| Container {
        name: "c".to_owned(),
        security_context: Some(security),
        ..Container::default()
    };
    let pod = |containers| PodSpec {
        containers,
        ..PodSpec::default()
    };
    let privileged = SecurityContext {
        privileged: Some(true),
        ..SecurityContext::default()
    };
    assert_eq!(
        baseline(&pod(vec![container(privileged)])),
        ["c: privileged"]
    );
    let capabilities = Capabilities {
        add: Some(vec!["SYS_ADMIN".to_owned()]),
        ..Capabilities::default()
    };
    let capable = SecurityContext {
        capabilities: Some(capabilities),
        ..SecurityContext::default()
    };
    assert_eq!(
        baseline(&pod(vec![container(capable)])),
        ["c: capability SYS_ADMIN"]
    );
    let host = Volume {
        name: "host".to_owned(),
        host_path: Some(HostPathVolumeSource::default()),
        ..Volume::default()
    };
    let mounted = PodSpec {
        volumes: Some(vec![host]),
        ..PodSpec::default()
    };
    assert_eq!(restricted(&mounted), ["host", "volume host"]);
    let bare = restricted(&pod(vec![container(SecurityContext::default())]));
    assert_eq!(
        bare,
        [
            "c: escalation",
            "c: may be root",
            "c: no seccomp",
            "c: keeps capabilities"
        ]
    );
}
