//! `runs`: prints the records of finished runs.

use alustan_api::change_set::{AttributeChange, ChangeSet, ResourceChange, ValueChange};
use alustan_api::{TerraformRun, TerraformRunStatus};
use clap::Args;
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::cluster::Cluster;
use crate::error::Error;
use crate::{finished_runs, print};

/// Print the finished runs of a resource, newest first. With a number, print cause, result and changes of one run.
#[derive(Debug, Args)]
pub(crate) struct Runs {
    /// Name of the resource.
    name: String,
    /// Number of the run.
    run: Option<i64>,
}

impl Runs {
    pub(crate) async fn run(&self, cluster: &Cluster) -> Result<(), Error> {
        let tf = cluster.resource(&self.name).await?;
        if let Some(number) = self.run {
            let run = finished_runs::find(cluster, &tf, number).await?;
            return print::bytes(details(&run).as_bytes());
        }
        let runs = finished_runs::list(cluster, &tf).await?;
        if runs.is_empty() {
            print::note(&format!("{} has no finished run", cluster.key(&self.name)));
        }
        print::bytes(table(&runs, Timestamp::now()).as_bytes())
    }
}

fn table(runs: &[TerraformRun], now: Timestamp) -> String {
    let header = [
        "RUN", "KIND", "RESULT", "CHANGES", "CAUSE", "FINISHED", "TOOK",
    ];
    let rows = runs.iter().filter_map(|run| {
        let status = run.status.as_ref()?;
        Some([
            run.spec.number.to_string(),
            run.spec.kind.to_string(),
            result(status),
            status.summary.clone().unwrap_or_default(),
            run.spec.trigger.clone(),
            age(now.duration_since(status.finished_at.0)),
            format!("{}s", status.seconds),
        ])
    });
    let rows: Vec<_> = std::iter::once(header.map(str::to_owned))
        .chain(rows)
        .collect();
    print::table(&rows)
}

/// Returns result, reason of the failure, and number of runs for which the record stands. Example: `Failed (PlanFailed, 3 times)`.
fn result(status: &TerraformRunStatus) -> String {
    let times = (status.count > 1).then(|| format!("{} times", status.count));
    let notes: Vec<String> = status.reason.iter().cloned().chain(times).collect();
    if notes.is_empty() {
        status.result.clone()
    } else {
        format!("{} ({})", status.result, notes.join(", "))
    }
}

/// Returns a duration as kubectl prints an age. Examples: `42s`, `7m`, `3h`, `12d`.
fn age(duration: SignedDuration) -> String {
    match duration.as_secs().max(0) {
        seconds @ ..120 => format!("{seconds}s ago"),
        seconds @ ..7_200 => format!("{}m ago", seconds / 60),
        seconds @ ..172_800 => format!("{}h ago", seconds / 3_600),
        seconds => format!("{}d ago", seconds / 86_400),
    }
}

fn details(run: &TerraformRun) -> String {
    let (spec, status) = (&run.spec, run.status.as_ref());
    let approval = spec.approval.as_ref().map(|approval| {
        let by = approval.by.as_deref().unwrap_or("an unnamed user");
        format!("plan {} by {by}", approval.plan)
    });
    let commit = spec
        .commit
        .as_ref()
        .map(|commit| format!("{} ({})", commit.subject, commit.author));
    let facts = [
        ("Run", Some(format!("{} ({})", spec.number, spec.kind))),
        ("Cause", Some(spec.trigger.clone())),
        ("Revision", spec.revision.clone()),
        ("Commit", commit),
        ("Approval", approval),
        ("Started", Some(spec.started_at.0.to_string())),
        ("Took", status.map(|status| format!("{}s", status.seconds))),
        ("Result", status.map(result)),
        ("Message", status.and_then(|status| status.message.clone())),
        ("Changes", status.and_then(|status| status.summary.clone())),
    ];
    let mut text = String::new();
    for (name, fact) in facts {
        if let Some(fact) = fact {
            let line = format!("{:<10}{fact}\n", format!("{name}:"));
            text.push_str(&line);
        }
    }
    if let Some(changes) = status.and_then(|status| status.changes.as_ref()) {
        text.push_str(&changes_text(changes));
    }
    text
}

fn changes_text(changes: &ChangeSet) -> String {
    let mut lines = Vec::new();
    for resource in &changes.resources {
        lines.extend(resource_lines(resource));
    }
    if !changes.outputs.is_empty() {
        lines.push("outputs".to_owned());
    }
    for output in &changes.outputs {
        lines.push(format!("    {}: {}", output.name, values(&output.values)));
    }
    for check in &changes.checks {
        lines.push(format!("check {}: {}", check.address, check.status));
        lines.extend(
            check
                .messages
                .iter()
                .map(|message| format!("    {message}")),
        );
    }
    if changes.omitted > 0 {
        lines.push(format!("and {} more changes", changes.omitted));
    }
    lines.push(String::new());
    lines.join("\n")
}

fn resource_lines(resource: &ResourceChange) -> Vec<String> {
    let reason = resource.reason.as_ref();
    let reason = reason.map_or_else(String::new, |reason| format!(" ({reason})"));
    let mut lines = vec![format!("{} {}{reason}", resource.action, resource.address)];
    lines.extend(resource.attributes.iter().map(attribute_line));
    if resource.omitted_attributes > 0 {
        lines.push(format!(
            "    and {} more attributes",
            resource.omitted_attributes
        ));
    }
    lines
}

fn attribute_line(attribute: &AttributeChange) -> String {
    let forces = if attribute.forces_replacement {
        " (forces replacement)"
    } else {
        ""
    };
    format!(
        "    {}: {}{forces}",
        attribute.path,
        values(&attribute.values)
    )
}

/// Returns the values before and after a change, in the words of the engine.
fn values(change: &ValueChange) -> String {
    if change.sensitive {
        return "(sensitive value)".to_owned();
    }
    let none = "null";
    let before = change.before.as_deref().unwrap_or(none);
    let after = if change.unknown {
        "(known after apply)"
    } else {
        change.after.as_deref().unwrap_or(none)
    };
    format!("{before} -> {after}")
}
