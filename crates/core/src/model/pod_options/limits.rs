//! Options that are refused in resources unless the operator allows them, and maximum values.

use std::collections::BTreeMap;

use alustan_api::{PodOptions, PodResources, PodVolume};

use super::violation::Violation;
use crate::pod_policy::PodPolicy;
use crate::quantity;

/// Returns the first option that requires permission and that `policy` does not allow.
pub(super) fn unless_allowed(options: &PodOptions, policy: &PodPolicy) -> Option<Violation> {
    let allowed = &policy.allowed;
    let denied = |path: String, what: &str, entry: &str, list: &str| {
        let cause = format!(
            "the operator does not allow {what}{list}; remove it, or ask the administrator of the \
             operator to allow it (allowed.{entry} in the file of --pod-defaults)"
        );
        Violation::new(path, cause)
    };
    let name = |field: &str, name: &Option<String>, entry: &str, names: &[String]| {
        let name = name.as_ref().filter(|name| !names.contains(name))?;
        Some(denied(
            field.to_owned(),
            name,
            entry,
            &allowed_suffix(names),
        ))
    };
    let key = |field: &str, keys: &BTreeMap<String, String>, entries: &[String]| {
        let key = keys.keys().find(|key| !contains_key(entries, key))?;
        let path = format!("{field}.{key}");
        Some(denied(path, "this key", field, &allowed_suffix(entries)))
    };
    let volume = |(index, volume): (usize, &PodVolume)| {
        let path = format!("volumes[{index}]");
        let driver = volume.csi.as_ref().map(|csi| &csi.driver);
        let driver = driver.filter(|driver| !allowed.csi_drivers.contains(driver));
        let is_claim =
            volume.persistent_volume_claim.is_some() && !allowed.persistent_volume_claims;
        let claim = is_claim.then(|| {
            let path = format!("{path}.persistentVolumeClaim");
            denied(path, "volumes of this type", "persistentVolumeClaims", "")
        });
        claim.or_else(|| {
            let list = allowed_suffix(&allowed.csi_drivers);
            let driver = format!("driver {}", driver?);
            Some(denied(
                format!("{path}.csi.driver"),
                &driver,
                "csiDrivers",
                &list,
            ))
        })
    };
    let toleration = || {
        let mut tolerations = options.tolerations.iter().enumerate();
        let (index, _) = tolerations.find(|(_, toleration)| {
            !allowed
                .tolerations
                .iter()
                .any(|entry| entry.allows(toleration))
        })?;
        Some(denied(
            format!("tolerations[{index}]"),
            "this toleration",
            "tolerations",
            "",
        ))
    };
    name(
        "priorityClassName",
        &options.priority_class_name,
        "priorityClassNames",
        &allowed.priority_class_names,
    )
    .or_else(|| {
        name(
            "runtimeClassName",
            &options.runtime_class_name,
            "runtimeClassNames",
            &allowed.runtime_class_names,
        )
    })
    .or_else(toleration)
    .or_else(|| cross_namespace_term(options))
    .or_else(|| key("labels", &options.labels, &allowed.labels))
    .or_else(|| key("annotations", &options.annotations, &allowed.annotations))
    .or_else(|| options.volumes.iter().enumerate().find_map(volume))
}

/// Returns the first required anti-affinity to pods of other namespaces. It is symmetric: the scheduler would start no such pod in the
/// topology domain of the run.
fn cross_namespace_term(options: &PodOptions) -> Option<Violation> {
    let terms = options
        .affinity
        .as_ref()?
        .pod_anti_affinity
        .as_ref()?
        .required_during_scheduling_ignored_during_execution
        .as_ref()?;
    let (index, _) = terms.iter().enumerate().find(|(_, term)| {
        term.namespace_selector.is_some()
            || term
                .namespaces
                .as_ref()
                .is_some_and(|names| !names.is_empty())
    })?;
    let cause = "this term would keep pods of other namespaces from starting; remove namespaces and \
                 namespaceSelector, or ask the administrator of the operator to set the affinity as \
                 a default (file of --pod-defaults)";
    let path = "affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution";
    Some(Violation::new(format!("{path}[{index}]"), cause))
}

/// Returns a message suffix with the allowed values.
fn allowed_suffix(names: &[String]) -> String {
    if names.is_empty() {
        String::new()
    } else {
        format!("; allowed: {}", names.join(", "))
    }
}

/// Whether `entries` contain `key`, or a prefix of it followed by `*`.
fn contains_key(entries: &[String], key: &str) -> bool {
    entries.iter().any(|entry| match entry.strip_suffix('*') {
        Some(prefix) => key.starts_with(prefix),
        None => entry == key,
    })
}

/// Returns the first request or limit above the maximum of `policy`.
pub(super) fn above_maximum(options: &PodOptions, policy: &PodPolicy) -> Option<Violation> {
    let PodResources { limits, requests } = options.resources.as_ref()?;
    let limits = limits.iter().map(|entry| ("limits", entry));
    let mut all = limits.chain(requests.iter().map(|entry| ("requests", entry)));
    all.find_map(|(field, (name, value))| {
        let maximum = policy.maximum.resources.get(name)?;
        quantity::exceeds(value, maximum).then(|| {
            let cause = format!(
                "{} exceeds the maximum of the operator, {}; reduce it, or ask the administrator of \
                 the operator for a higher maximum (maximum.resources in the file of \
                 --pod-defaults)",
                value.0, maximum.0
            );
            Violation::new(format!("resources.{field}.{name}"), cause)
        })
    })
}
