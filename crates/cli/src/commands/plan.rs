//! `plan`: prints the text of the pending plan, of the last speculative plan, or of the plan of a finished run, and requests plans.

mod now;

use std::time::Duration;

use alustan_api::names::{self, plan_key};
use alustan_api::report::RunResult;
use alustan_api::run::RunKind;
use alustan_api::{Mode, ObjectKey, RunStatus, Terraform, TerraformRun, TerraformRunStatus};
use clap::Args;
use k8s_openapi::api::core::v1::Secret;

use crate::cluster::{Cluster, call};
use crate::commands::wait::duration;
use crate::error::Error;
use crate::pending::{Pending, pending};
use crate::{finished_runs, print};

/// Print the plan that waits for approval, and the command that approves it. With `mode: PlanOnly`, print the last plan. With --run, print
/// the plan of a finished run.
#[derive(Debug, Args)]
pub(crate) struct Plan {
    /// Name of the resource.
    name: String,
    /// Print the plan of the finished run with this number.
    #[arg(long, conflicts_with = "now")]
    run: Option<i64>,
    /// Request a plan immediately, without an apply. A run that is in progress ends first. The plan uses no approval and no
    /// retry budget, and corrects no drift.
    #[arg(long)]
    now: bool,
    /// With --now: wait for the plan, and print it. Fails if the plan fails.
    #[arg(long, requires = "now")]
    wait: bool,
    /// Timeout of --wait, for example 90s, 10m, 1h30m.
    #[arg(long, default_value = "10m", value_parser = duration, requires = "wait")]
    timeout: Duration,
}

impl Plan {
    pub(crate) async fn run(&self, cluster: &Cluster) -> Result<(), Error> {
        if self.now {
            return Box::pin(self.plan_now(cluster)).await;
        }
        let tf = cluster.resource(&self.name).await?;
        if let Some(number) = self.run {
            let run = finished_runs::find(cluster, &tf, number).await?;
            return print_recorded(&run);
        }
        let pending = match (pending(&tf), last_plan(&tf)) {
            (Ok(pending), _) => pending,
            (Err(_), Some(run)) => {
                return Box::pin(self.print_result(cluster, &tf, run)).await;
            }
            (Err(none), None) => return print::line(&none.to_string()),
        };
        let (stored, id) = ((plan_key::TEXT, plan_key::ID), &pending.id);
        let has_plan = |status: &TerraformRunStatus| status.plan_id.as_ref() == Some(id);
        match self.text(cluster, &tf, stored, id, has_plan).await? {
            Some(text) => print::line(text.trim_end())?,
            None => print::note(&format!(
                "the text of plan {} is not stored; see `kubectl alustan logs {} -n {}`",
                pending.id, self.name, cluster.namespace
            )),
        }
        let ObjectKey { namespace, name } = ObjectKey::of(&tf);
        let Pending { id, summary } = pending;
        print::line(&format!(
            "\nplan {id} of {namespace}/{name} waits for approval: {summary}\nto approve it: \
             kubectl alustan approve {name} {id} -n {namespace}"
        ))
    }

    /// Requests a plan. With `--wait`, waits for its result and prints it.
    async fn plan_now(&self, cluster: &Cluster) -> Result<(), Error> {
        let requested = now::request(cluster, &self.name).await?;
        if !self.wait {
            let (name, namespace) = (&self.name, &cluster.namespace);
            print::note(&format!(
                "the result is the newest entry with trigger `plan requested …` in status.runs: kubectl \
                 get tf {name} -n {namespace} -o yaml"
            ));
            return Ok(());
        }
        let (tf, run) = now::wait(cluster, &self.name, requested, self.timeout).await?;
        self.print_result(cluster, &tf, &run).await
    }

    /// Prints the result of `run`, which created a speculative plan.
    ///
    /// # Errors
    /// If the run failed.
    async fn print_result(
        &self,
        cluster: &Cluster,
        tf: &Terraform,
        run: &RunStatus,
    ) -> Result<(), Error> {
        let ObjectKey { namespace, name } = ObjectKey::of(tf);
        let number = run.number;
        let see_logs = format!("`kubectl alustan logs {name} --run {number} -n {namespace}`");
        if run.result == RunResult::Failed.as_str() {
            let reason = run.reason.as_deref().unwrap_or("Failed");
            let error = run.error.as_deref().unwrap_or("no message");
            return Err(Error::Refused(format!(
                "the plan of {namespace}/{name} (run {number}) failed ({reason}): {error}; see {see_logs}"
            )));
        }
        let Some(summary) = &run.plan else {
            return print::line(&format!(
                "the plan of {namespace}/{name} (run {number}) has no changes"
            ));
        };
        let stored = (plan_key::SPECULATIVE_TEXT, plan_key::SPECULATIVE_RUN);
        let has_plan = |status: &TerraformRunStatus| status.last_number == number;
        let id = number.to_string();
        match self.text(cluster, tf, stored, &id, has_plan).await? {
            Some(text) => print::line(text.trim_end())?,
            None => print::note(&format!(
                "the text of the plan of run {number} is not stored; see {see_logs}"
            )),
        }
        print::line(&format!(
            "\nthe plan of {namespace}/{name} (run {number}) has changes, which are not applied: {summary}"
        ))
    }

    /// Returns the text of the plan `wanted`: from the plan Secret, or, if the Secret has another plan or the user may not read it, from the
    /// record of the run that `has_plan`. `stored`: data keys of the text and of the id in the Secret. `None` if the text is not stored.
    async fn text(
        &self,
        cluster: &Cluster,
        tf: &Terraform,
        stored: (&str, &str),
        wanted: &str,
        has_plan: impl Fn(&TerraformRunStatus) -> bool,
    ) -> Result<Option<String>, Error> {
        let secret = names::plan(&self.name);
        let action = format!("read Secret {}", cluster.key(&secret));
        let secret = match call(&action, cluster.api::<Secret>().get_opt(&secret)).await {
            Err(error) if error.is_forbidden() => None,
            other => other?,
        };
        let text = secret.and_then(|secret| text_in(&secret, stored.0, stored.1, wanted));
        if text.is_some() {
            return Ok(text);
        }
        let runs = finished_runs::list(cluster, tf).await?;
        let mut results = runs.into_iter().filter_map(|run| run.status);
        Ok(results.find(has_plan).and_then(|status| status.plan))
    }
}

/// Prints the text of the plan in the record of a finished run.
fn print_recorded(run: &TerraformRun) -> Result<(), Error> {
    let (name, number) = (&run.spec.terraform.name, run.spec.number);
    let status = run.status.as_ref();
    match status.and_then(|status| status.plan.as_ref()) {
        Some(text) => print::line(text.trim_end()),
        None => Err(Error::Refused(format!(
            "the record of run {number} of {name} has no text of a plan; the run may have no plan, spec.history.values may be Names, or the \
             text was removed from an old record (--run-history-bytes of the operator)"
        ))),
    }
}

/// Returns the run that created the last speculative plan. `None` with `spec.mode: Apply`, and if the plan has no changes.
fn last_plan(tf: &Terraform) -> Option<&RunStatus> {
    let status = tf.status.as_ref()?;
    let has_plan = tf.spec.mode == Mode::PlanOnly && status.plan.is_some();
    let mut runs = status.runs.iter().filter(|_| has_plan);
    runs.find(|run| run.kind == RunKind::Drift && run.plan.is_some())
}

/// Returns the data key `text` of `secret`. `None` if the data key `id` is not `wanted`: the text is that of another plan.
fn text_in(secret: &Secret, text: &str, id: &str, wanted: &str) -> Option<String> {
    let data = secret.data.as_ref()?;
    let of_it = data.get(id)?.0 == wanted.as_bytes();
    let text = data.get(text).filter(|_| of_it)?;
    Some(String::from_utf8_lossy(&text.0).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    #[rstest]
    #[case::same_plan("MDEyMw==", Some("text"))]
    #[case::earlier_plan("NDU2Nw==", None)]
    fn plan_text_of_another_plan_is_not_shown(#[case] id: &str, #[case] wanted: Option<&str>) {
        let secret = json!({"data": {"id": id, "plan.txt": "dGV4dA=="}});
        let secret: Secret = serde_json::from_value(secret).unwrap();
        let text = text_in(&secret, plan_key::TEXT, plan_key::ID, "0123");
        assert_eq!(text.as_deref(), wanted);
    }
}
