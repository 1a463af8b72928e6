//! Merges pod options.

use std::collections::BTreeMap;

use alustan_api::{PodOptions, PodResources};

use crate::quantity;

/// Merges `options` into `defaults`. `options` take precedence.
pub(super) fn merge(defaults: &PodOptions, options: PodOptions) -> PodOptions {
    let defaults = defaults.clone();
    PodOptions {
        resources: merge_resources(defaults.resources, options.resources),
        node_selector: merge_maps(defaults.node_selector, options.node_selector),
        affinity: options.affinity.or(defaults.affinity),
        tolerations: [defaults.tolerations, options.tolerations].concat(),
        topology_spread_constraints: [
            defaults.topology_spread_constraints,
            options.topology_spread_constraints,
        ]
        .concat(),
        priority_class_name: options.priority_class_name.or(defaults.priority_class_name),
        runtime_class_name: options.runtime_class_name.or(defaults.runtime_class_name),
        labels: merge_maps(defaults.labels, options.labels),
        annotations: merge_maps(defaults.annotations, options.annotations),
        image_pull_secrets: merge_lists(
            defaults.image_pull_secrets,
            options.image_pull_secrets,
            |secret| &secret.name,
        ),
        host_aliases: [defaults.host_aliases, options.host_aliases].concat(),
        dns_config: options.dns_config.or(defaults.dns_config),
        volumes: merge_lists(defaults.volumes, options.volumes, |volume| &volume.name),
        volume_mounts: merge_lists(defaults.volume_mounts, options.volume_mounts, |mount| {
            &mount.mount_path
        }),
        env: merge_lists(defaults.env, options.env, |variable| &variable.name),
        env_from: [defaults.env_from, options.env_from].concat(),
        termination_grace_period_seconds: options
            .termination_grace_period_seconds
            .or(defaults.termination_grace_period_seconds),
    }
}

fn merge_maps<V>(
    mut defaults: BTreeMap<String, V>,
    options: BTreeMap<String, V>,
) -> BTreeMap<String, V> {
    defaults.extend(options);
    defaults
}

/// Merges lists. An entry replaces earlier entries with the same `key`.
fn merge_lists<T>(defaults: Vec<T>, options: Vec<T>, key: impl Fn(&T) -> &String) -> Vec<T> {
    let mut merged: Vec<T> = Vec::new();
    for entry in defaults.into_iter().chain(options) {
        merged.retain(|earlier| key(earlier) != key(&entry));
        merged.push(entry);
    }
    merged
}

/// Merges resources by name. Drops a default limit below a request in the options, and a default request above a limit in the options.
fn merge_resources(
    defaults: Option<PodResources>,
    options: Option<PodResources>,
) -> Option<PodResources> {
    let (Some(mut defaults), Some(options)) = (defaults.clone(), options.clone()) else {
        return options.or(defaults);
    };
    defaults.limits.retain(|name, limit| {
        let request = options.requests.get(name);
        !request.is_some_and(|request| quantity::exceeds(request, limit))
    });
    defaults.requests.retain(|name, request| {
        let limit = options.limits.get(name);
        !limit.is_some_and(|limit| quantity::exceeds(request, limit))
    });
    Some(PodResources {
        limits: merge_maps(defaults.limits, options.limits),
        requests: merge_maps(defaults.requests, options.requests),
    })
}

/// Makes all references to Secrets and ConfigMaps optional.
pub(super) fn make_references_optional(options: &mut PodOptions) {
    let optional = Some(true);
    for volume in &mut options.volumes {
        if let Some(config_map) = &mut volume.config_map {
            config_map.optional = optional;
        }
        if let Some(secret) = &mut volume.secret {
            secret.optional = optional;
        }
        let projected = volume.projected.iter_mut();
        for source in projected
            .flat_map(|projected| &mut projected.sources)
            .flatten()
        {
            if let Some(config_map) = &mut source.config_map {
                config_map.optional = optional;
            }
            if let Some(secret) = &mut source.secret {
                secret.optional = optional;
            }
        }
    }
    for source in options
        .env
        .iter_mut()
        .filter_map(|variable| variable.value_from.as_mut())
    {
        if let Some(config_map) = &mut source.config_map_key_ref {
            config_map.optional = optional;
        }
        if let Some(secret) = &mut source.secret_key_ref {
            secret.optional = optional;
        }
    }
    for source in &mut options.env_from {
        if let Some(config_map) = &mut source.config_map_ref {
            config_map.optional = optional;
        }
        if let Some(secret) = &mut source.secret_ref {
            secret.optional = optional;
        }
    }
}
