//! Names of everything that belongs to a resource. Each is the resource's name and a suffix; no
//! suffix ends in another, so objects of two resources never share a name.

use crate::run::RunKind;

/// The longest name of a `Terraform` resource: its Jobs' names must be label values
/// (63 characters, <https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/>).
pub const MAX_NAME: usize = 50;

/// The Secret with the run record.
pub fn record(name: &str) -> String {
    format!("{name}-run")
}

/// The Secret with what destroy needs.
pub fn pin(name: &str) -> String {
    format!("{name}-pin")
}

/// The Secret that points at the slots of the managed state.
pub fn state(name: &str) -> String {
    format!("{name}-state")
}

/// One Secret with a part of the managed state.
pub fn state_slot(name: &str, slot: u32) -> String {
    format!("{name}-state-slot-{slot}")
}

/// The default Secret with the outputs.
pub fn outputs(name: &str) -> String {
    format!("{name}-outputs")
}

/// The pull secret derived from the registry's Secret.
pub fn pull_secret(name: &str) -> String {
    format!("{name}-registry")
}

/// The cache volume's claim.
pub fn cache(name: &str) -> String {
    format!("{name}-cache")
}

/// ServiceAccount, Role and RoleBinding of the runner.
pub fn runner(name: &str) -> String {
    format!("{name}-runner")
}

/// The Job of run `number`, at most 63 characters for names of up to [`MAX_NAME`].
pub fn run_job(name: &str, kind: RunKind, number: i64) -> String {
    format!("{name}-{kind}-{number}")
}

/// The Job that builds the image tagged `tag` (hexadecimal, see rule 1).
pub fn build_job(tag: &str) -> String {
    format!("alustan-build-{}", tag.get(..20).unwrap_or(tag))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn job_names_of_the_longest_resource_are_label_values() {
        let name = "n".repeat(MAX_NAME);
        assert!(run_job(&name, RunKind::Destroy, 9_999).len() <= 63);
    }

    #[test]
    fn objects_of_two_resources_never_share_a_name() {
        let names = [
            "web",
            "web-2",
            "web-run",
            "web-plan",
            "web-state",
            "web-state-slot",
            "web-apply",
        ];
        let mut seen = std::collections::BTreeMap::new();
        for name in names {
            let mut all = vec![
                record(name),
                pin(name),
                state(name),
                outputs(name),
                pull_secret(name),
            ];
            all.extend((0..3).map(|slot| state_slot(name, slot)));
            for secret in all {
                assert_eq!(
                    seen.insert(secret.clone(), name),
                    None,
                    "{secret} belongs to two"
                );
            }
        }
    }
}
