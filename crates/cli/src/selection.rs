//! Selects the resources of a command, and patches each of them.

use alustan_api::ObjectKey;
use alustan_api::Terraform;
use alustan_api::reason::current;
use clap::{ArgGroup, Args};
use serde_json::Value;

use crate::cluster::{Cluster, FIELD_MANAGER};
use crate::condition::reason;
use crate::error::Error;
use crate::print;

/// Resources selected by name or by reason, or all resources.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("which").args(["names", "all", "reason"]).required(true).multiple(true)))]
pub(crate) struct Selection {
    /// Names of the resources.
    #[arg(value_name = "NAME", conflicts_with_all = ["all", "all_namespaces"])]
    names: Vec<String>,
    /// All resources of the namespace.
    #[arg(long)]
    all: bool,
    /// Only resources whose condition Ready has this reason.
    #[arg(long)]
    reason: Option<String>,
    /// Select in all namespaces. Use with --all or --reason, not with names.
    #[arg(short = 'A', long)]
    all_namespaces: bool,
}

impl Selection {
    /// Applies the merge patch `change` to each selected resource. `done` describes the result in messages, for example
    /// `suspended`.
    pub(crate) async fn change(
        &self,
        cluster: &Cluster,
        change: &Value,
        done: &str,
    ) -> Result<(), Error> {
        let selected = self.selected(cluster).await?;
        if selected.is_empty() {
            print::note(&self.nobody(cluster));
        }
        let mut failed = 0;
        for tf in &selected {
            match cluster.change(tf, FIELD_MANAGER, change).await {
                Ok(()) => print::line(&format!("{} {done}", ObjectKey::of(tf)))?,
                Err(error) => {
                    failed += 1;
                    print::note(&format!("error: {}", error.chain()));
                }
            }
        }
        match failed {
            0 => Ok(()),
            _ => Err(Error::Refused(format!(
                "the change failed for {failed} of {} resources; see the errors above",
                selected.len()
            ))),
        }
    }

    /// Returns the selected resources. Fails on an unknown name, before the command changes a resource.
    async fn selected(&self, cluster: &Cluster) -> Result<Vec<Terraform>, Error> {
        let mut resources = Vec::new();
        for name in &self.names {
            resources.push(cluster.resource(name).await?);
        }
        if self.names.is_empty() {
            let namespace = Some(cluster.namespace.as_str()).filter(|_| !self.all_namespaces);
            resources = cluster.resources(namespace).await?;
        }
        resources.retain(|tf| has_reason(tf, self.reason.as_deref()));
        Ok(resources)
    }

    fn nobody(&self, cluster: &Cluster) -> String {
        let scope = if self.all_namespaces {
            "any namespace".to_owned()
        } else {
            format!("namespace {}", cluster.namespace)
        };
        match &self.reason {
            Some(reason) => format!("no resource in {scope} has reason {reason}"),
            None => format!("no resources found in {scope}"),
        }
    }
}

/// Whether condition Ready of `tf` has the reason `wanted`. A renamed reason matches under its old and its current
/// name. `None` matches any reason.
fn has_reason(tf: &Terraform, wanted: Option<&str>) -> bool {
    wanted.is_none_or(|wanted| reason(tf).map(current) == Some(current(wanted)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    fn stalled() -> Terraform {
        serde_json::from_value(json!({
            "apiVersion": "alustan.io/v1alpha1", "kind": "Terraform", "metadata": {"name": "web"},
            "spec": {
                "gitRepo": {"url": "https://127.0.0.1:1/a/b"},
                "containerRegistry": {"imageName": "127.0.0.1:1/a/b"},
            },
            "status": {"conditions": [
                {
                    "type": "InSync", "status": "False", "reason": "Drifted", "message": "",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                },
                {
                    "type": "Ready", "status": "False", "reason": "PlanFailed", "message": "",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                },
            ]},
        }))
        .unwrap()
    }

    #[rstest]
    #[case::any(None, true)]
    #[case::reason_of_ready(Some("PlanFailed"), true)]
    #[case::reason_of_other_condition(Some("Drifted"), false)]
    #[case::part_of_reason(Some("Plan"), false)]
    fn resources_are_selected_by_reason_of_ready_condition(
        #[case] wanted: Option<&str>,
        #[case] selected: bool,
    ) {
        assert_eq!(has_reason(&stalled(), wanted), selected);
    }

    #[test]
    fn resource_without_status_matches_no_reason() {
        let fresh = Terraform {
            status: None,
            ..stalled()
        };
        assert!(has_reason(&fresh, None));
        assert!(!has_reason(&fresh, Some("PlanFailed")));
    }
}
