//! Names of the objects that the operator creates for a resource. Each name except that of a build Job is the name of the resource and a
//! suffix. No suffix ends with another suffix, so two different resource names never result in the same object name.

use crate::run_kind::RunKind;

/// Maximum size of the name of a `Terraform` resource, in bytes. Names of its Jobs must be label values (63 characters,
/// <https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/>).
pub const MAX_NAME: usize = 50;

/// Data key of the docker configuration in Secrets of type `kubernetes.io/dockerconfigjson`.
pub const DOCKER_CONFIG_KEY: &str = ".dockerconfigjson";

/// Maximum size of a label value, in bytes.
const MAX_LABEL: usize = 63;

/// Name of the Secret with the run record.
pub fn record(name: &str) -> String {
    format!("{name}-run")
}

/// Name of the Secret with the run report.
pub fn report(name: &str) -> String {
    format!("{name}-report")
}

/// Name of the Secret with the pin.
pub fn pin(name: &str) -> String {
    format!("{name}-pin")
}

/// Name of the Secret with the texts of the last plan that needs approval and of the last speculative plan.
pub fn plan(name: &str) -> String {
    format!("{name}-plan")
}

/// Keys in the data of Secret `NAME-plan`.
pub mod plan_key {
    /// Text of the plan.
    pub const TEXT: &str = "plan.txt";
    /// Id of the plan.
    pub const ID: &str = "id";
    /// Text of the last speculative plan, which no run applies.
    pub const SPECULATIVE_TEXT: &str = "speculative-plan.txt";
    /// Number of the run that created the last speculative plan.
    pub const SPECULATIVE_RUN: &str = "speculative-run";
}

/// Name of the Secret with the pointer of the managed state.
pub fn state(name: &str) -> String {
    format!("{name}-state")
}

/// Name of the Secret that is slot `slot` of the managed state.
pub fn state_slot(name: &str, slot: u32) -> String {
    format!("{name}-state-slot-{slot}")
}

/// Default name of the Secret with outputs.
pub fn outputs(name: &str) -> String {
    format!("{name}-outputs")
}

/// Name of the pull secret. The operator derives it from the Secret in `spec.containerRegistry.secretRef`.
pub fn pull_secret(name: &str) -> String {
    format!("{name}-registry")
}

/// Name of the `PersistentVolumeClaim` of the cache volume.
pub fn cache(name: &str) -> String {
    format!("{name}-cache")
}

/// Name of the directory of a resource in a shared `PersistentVolumeClaim`. The uid, which no other resource has, is the last 36 characters,
/// so two resources never have the same directory.
pub fn cache_directory(name: &str, uid: &str) -> String {
    format!("{name}-{uid}")
}

/// Name of the Job that empties the directory of a resource in the shared `PersistentVolumeClaim` `claim`. `digest`: hexadecimal digest of uid
/// and claim.
pub fn empty_cache_job(digest: &str) -> String {
    format!("alustan-cache-{}", digest.get(..20).unwrap_or(digest))
}

/// Name of the ServiceAccount, Role and RoleBinding of the runner.
pub fn runner(name: &str) -> String {
    format!("{name}-runner")
}

/// Name of the Job of run `number`, at most 63 characters. A longer name is truncated, and contains a digest of the resource name to keep
/// it unique.
pub fn run_job(name: &str, kind: RunKind, number: i64) -> String {
    let end = format!("-{kind}-{number}");
    let room = MAX_LABEL.saturating_sub(end.len());
    if name.len() <= room {
        return format!("{name}{end}");
    }
    // The digest is FNV-1a (<http://www.isthe.com/chongo/tech/comp/fnv/>). It is the same in every version of the operator, so an upgrade
    // does not change the names of Jobs.
    let digest = name.bytes().fold(0x811c_9dc5_u32, |digest, byte| {
        (digest ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    let kept = name
        .get(..room.saturating_sub(9))
        .unwrap_or_default()
        .trim_end_matches(['-', '.']);
    format!("{kept}-{digest:08x}{end}")
}

/// Returns the names that the Job of run `number` has, one for each kind of run.
pub fn run_jobs(name: &str, number: i64) -> [String; 4] {
    [
        RunKind::Plan,
        RunKind::Apply,
        RunKind::Drift,
        RunKind::Destroy,
    ]
    .map(|kind| run_job(name, kind, number))
}

/// Whether the operator may have created the Secret `name` for a resource. CEL rules of the CRD refuse the same names.
pub fn is_reserved_secret(name: &str) -> bool {
    let suffixes = ["-run", "-report", "-pin", "-plan", "-state", "-registry"];
    let slot = name.rsplit_once("-state-slot-").map(|(_, slot)| slot);
    suffixes.iter().any(|suffix| name.ends_with(suffix))
        || slot
            .is_some_and(|slot| !slot.is_empty() && slot.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Whether the operator may have created the `PersistentVolumeClaim` `name` for a resource.
pub fn is_reserved_claim(name: &str) -> bool {
    name.ends_with("-cache")
}

/// Name of the Job that builds the image with tag `tag`, a hexadecimal digest (rule 1).
pub fn build_job(tag: &str) -> String {
    format!("alustan-build-{}", tag.get(..20).unwrap_or(tag))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn job_name_of_longest_resource_fits_a_label_value() {
        let name = "n".repeat(MAX_NAME);
        let plain = run_job(&name, RunKind::Destroy, 9_999);
        assert_eq!(plain, format!("{name}-destroy-9999"));
        for number in [9_999, 10_000, i64::MAX] {
            assert!(run_job(&name, RunKind::Destroy, number).len() <= MAX_LABEL);
        }
    }

    #[test]
    fn long_resource_name_is_shortened_for_large_run_number() {
        let (one, other) = ("n".repeat(MAX_NAME), "n".repeat(MAX_NAME - 1) + "m");
        let name = run_job(&one, RunKind::Destroy, 10_000);
        assert!(
            name.starts_with("nnnn") && name.ends_with("-destroy-10000"),
            "{name}"
        );
        assert_ne!(name, run_job(&other, RunKind::Destroy, 10_000));
        let dotted = format!("{}.{}", "n".repeat(39), "n".repeat(10));
        let name = run_job(&dotted, RunKind::Destroy, 10_000);
        assert!(!name.contains(".-") && !name.contains("--"), "{name}");
    }

    #[test]
    fn objects_of_two_resources_never_share_a_name() {
        let names = [
            "web",
            "web-2",
            "web-run",
            "web-report",
            "web-plan",
            "web-state",
            "web-state-slot",
            "web-apply",
        ];
        let mut seen = std::collections::BTreeMap::new();
        for name in names {
            let mut all = vec![
                record(name),
                report(name),
                pin(name),
                plan(name),
                state(name),
                outputs(name),
                pull_secret(name),
            ];
            all.extend((0..3).map(|slot| state_slot(name, slot)));
            for secret in all {
                let is_public = secret == outputs(name);
                assert_eq!(is_reserved_secret(&secret), !is_public, "{secret}");
                assert_eq!(
                    seen.insert(secret.clone(), name),
                    None,
                    "{secret} belongs to two"
                );
            }
        }
    }
}
