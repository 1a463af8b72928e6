//! Adds pod options to the pod template of a run or a build. Fields of the operator are not changed.

use std::collections::BTreeMap;

use alustan_api::{PodOptions, PodResources, PodVolume, PodVolumeMount};
use k8s_openapi::api::core::v1::{
    Container, EmptyDirVolumeSource, LocalObjectReference, PodSpec, PodTemplateSpec,
    ResourceRequirements, Volume, VolumeMount,
};

use super::pod;
use crate::quantity;

/// Returns `template` with `options`. Resources apply to all containers; environment and mounts apply to the containers with the names in
/// `containers`, which have no credentials of the registry.
pub(crate) fn apply(
    options: &PodOptions,
    containers: &[&str],
    mut template: PodTemplateSpec,
) -> PodTemplateSpec {
    if let Some(metadata) = &mut template.metadata {
        add_keys(metadata.labels.get_or_insert_default(), &options.labels);
        add_keys(
            metadata.annotations.get_or_insert_default(),
            &options.annotations,
        );
    }
    if let Some(pod) = &mut template.spec {
        add_to_pod(pod, options);
        let all = pod
            .init_containers
            .iter_mut()
            .flatten()
            .chain(&mut pod.containers);
        for container in all {
            if let Some(resources) = &options.resources {
                let own = container.resources.take().unwrap_or_default();
                container.resources = Some(with_resources(own, resources));
            }
            if containers.contains(&container.name.as_str()) {
                add_environment(container, options);
            }
        }
    }
    template
}

/// Adds labels or annotations. Only those that disable sidecars can be replaced.
fn add_keys(own: &mut BTreeMap<String, String>, options: &BTreeMap<String, String>) {
    for (key, value) in options {
        if pod::is_sidecar_key(key) || !own.contains_key(key) {
            own.insert(key.clone(), value.clone());
        }
    }
}

fn add_to_pod(pod: &mut PodSpec, options: &PodOptions) {
    let selector = pod.node_selector.get_or_insert_default();
    for (key, value) in &options.node_selector {
        selector.entry(key.clone()).or_insert_with(|| value.clone());
    }
    pod.affinity.clone_from(&options.affinity);
    pod.priority_class_name
        .clone_from(&options.priority_class_name);
    pod.runtime_class_name
        .clone_from(&options.runtime_class_name);
    pod.dns_config.clone_from(&options.dns_config);
    pod.tolerations = non_empty(&options.tolerations);
    pod.topology_spread_constraints = non_empty(&options.topology_spread_constraints);
    pod.host_aliases = non_empty(&options.host_aliases);
    if !options.image_pull_secrets.is_empty() {
        let secrets = pod.image_pull_secrets.get_or_insert_default();
        for secret in &options.image_pull_secrets {
            let secret = LocalObjectReference {
                name: secret.name.clone(),
            };
            if !secrets.contains(&secret) {
                secrets.push(secret);
            }
        }
    }
    let volumes = pod.volumes.get_or_insert_default();
    volumes.extend(options.volumes.iter().map(volume));
}

fn non_empty<T: Clone>(list: &[T]) -> Option<Vec<T>> {
    (!list.is_empty()).then(|| list.to_vec())
}

fn volume(volume: &PodVolume) -> Volume {
    let PodVolume {
        name,
        config_map,
        secret,
        projected,
        csi,
        empty_dir,
        persistent_volume_claim,
    } = volume.clone();
    let empty_dir = empty_dir.map(|empty_dir| EmptyDirVolumeSource {
        size_limit: empty_dir.size_limit.or_else(|| Some(pod::scratch_size())),
        ..empty_dir
    });
    Volume {
        name,
        config_map,
        secret,
        projected,
        csi,
        empty_dir,
        persistent_volume_claim,
        ..Volume::default()
    }
}

fn add_environment(container: &mut Container, options: &PodOptions) {
    let mounts = options.volume_mounts.iter().map(mount);
    container
        .volume_mounts
        .get_or_insert_default()
        .extend(mounts);
    let env = container.env.get_or_insert_default();
    let own: Vec<String> = env.iter().map(|variable| variable.name.clone()).collect();
    let variables = options.env.iter();
    env.extend(
        variables
            .filter(|variable| !own.contains(&variable.name))
            .cloned(),
    );
    if !options.env_from.is_empty() {
        env.extend(pod::own_paths().filter(|variable| !own.contains(&variable.name)));
        let own = container.env_from.take().unwrap_or_default();
        container.env_from = Some(options.env_from.iter().cloned().chain(own).collect());
    }
}

fn mount(mount: &PodVolumeMount) -> VolumeMount {
    VolumeMount {
        read_only: mount.read_only.then_some(true),
        sub_path: mount.sub_path.clone(),
        ..pod::mount(&mount.name, &mount.mount_path)
    }
}

/// Returns the default resources `own` of a container, overridden by `options`. Reduces a default request to a lower limit in the options,
/// and increases a default limit to a higher request in the options.
pub(crate) fn with_resources(
    own: ResourceRequirements,
    options: &PodResources,
) -> ResourceRequirements {
    let mut limits = own.limits.unwrap_or_default();
    let mut requests = own.requests.unwrap_or_default();
    for (name, request) in &options.requests {
        if limits
            .get(name)
            .is_some_and(|limit| quantity::exceeds(request, limit))
        {
            limits.insert(name.clone(), request.clone());
        }
    }
    limits.extend(options.limits.clone());
    requests.extend(options.requests.clone());
    for (name, request) in &mut requests {
        if let Some(limit) = limits
            .get(name)
            .filter(|limit| quantity::exceeds(request, limit))
        {
            request.clone_from(limit);
        }
    }
    ResourceRequirements {
        limits: Some(limits),
        requests: Some(requests),
        ..own
    }
}
