//! Executes one run from claim to report.

mod execute;
mod rescue;
mod session;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use alustan_api::Reason;
use alustan_api::change_set::ChangeSet;
use alustan_api::report::{RunReport, RunResult};
use alustan_api::run::{RunDetails, RunKind};
use alustan_state::retry::Patience;
use alustan_state::secrets::Secrets;
use k8s_openapi::jiff::Timestamp;

use crate::claim::{Claimed, claim};
use crate::engine::command::Commands;
use crate::failure::transient;
use crate::file_system::copy_tree;
use crate::module::variables::Values;
use crate::paths::{Paths, Vars};
use crate::record::{Identity, RecordError, RecordHandle};
use crate::report::{self, ReportExtras};
use crate::run::execute::outcome::{Ended, Findings};
use crate::run::session::{Parts, Session};
use crate::secrets::redact::Redactor;
use crate::secrets::values::of_run;
use crate::state::inventory;

/// Inputs of [`run`].
pub struct RunEnvironment {
    /// Identity of the run.
    pub identity: Identity,
    /// Paths of the pod.
    pub paths: Paths,
    /// Environment variables of the container.
    pub vars: Vars,
    /// Access to the Secrets of the run.
    pub secrets: Arc<dyn Secrets>,
    /// Executes the commands of the run.
    pub commands: Commands,
}

/// Executes the run from claim to report. Returns exit code 0 if the run did not fail, or if this pod must not execute it
/// ([`RecordError::NotOurs`]). Returns 1 if the run failed, or if the pod could not claim the run or could not write the run report.
pub async fn run(environment: RunEnvironment) -> ExitCode {
    let (began, started_at) = (Instant::now(), Timestamp::now());
    let record = RecordHandle::new(environment.secrets.clone(), environment.identity.clone());
    let (from, to) = (
        environment.paths.module.clone(),
        environment.paths.module_copy(),
    );
    let copied = tokio::task::spawn_blocking(move || copy_tree(&from, &to));
    let claimed = tokio::select! {
        claimed = claim(&record, started_at) => claimed,
        _ = environment.commands.stop.requested() => return ExitCode::FAILURE,
    };
    let claimed = match claimed {
        Ok(claimed) => claimed,
        Err(error) => return refused(&environment, &error),
    };
    let redactor = redactor(&environment, &claimed);
    let (number, kind) = (environment.identity.number, claimed.run.kind);
    let trace = &claimed.run.trace_id;
    crate::log!(
        "run {number} of {}: {kind}, trace {trace}",
        environment.identity.record
    );
    let mut findings = Findings::default();
    let ended = match copied
        .await
        .map_err(std::io::Error::other)
        .and_then(|result| result)
    {
        Ok(()) => carry_out(&environment, &record, claimed, began, &mut findings).await,
        Err(error) => {
            let message = format!("failed to copy the module: {error}");
            Err(transient(Reason::WorkspaceFailed, message).into())
        }
    };
    let (result, failure) = match ended {
        Ok(result) => (result, None),
        Err(Ended::Cancelled) => (RunResult::Cancelled, None),
        Err(Ended::Failed(failure)) => (RunResult::Failed, Some(redactor.failure(failure))),
        Err(Ended::NotOurs(why)) => return refused(&environment, &RecordError::NotOurs(why)),
    };
    let report = RunReport {
        number,
        kind,
        result,
        trigger: String::new(),
        job: String::new(),
        changes: findings.changes.as_ref().map(ChangeSet::summary),
        asks: findings.asks.take(),
        lineage: findings.lineage.take(),
        lock: findings.lock.take(),
        failure,
        unsaved: findings.unsaved,
        recovered: findings.recovered,
        state_address: findings.state_address.take(),
        moved_from: findings.moved_from.take(),
        engine: findings.engine.take(),
        inventory: findings.inventory.as_ref().map(|inventory| inventory.count),
        undeclared: std::mem::take(&mut findings.undeclared),
        registry_hosts: findings.registry_hosts.take(),
        took: findings.took,
        started_at,
        finished_at: Timestamp::now(),
    };
    finish(&environment, &record, &report, &findings).await
}

/// Returns a redactor of the secret values that are known before the variable declarations of the module are read.
fn redactor(environment: &RunEnvironment, claimed: &Claimed) -> Redactor {
    let (server, values, declared) = (Vars::new(), Values::default(), BTreeMap::new());
    let secrets = of_run(
        &claimed.inputs,
        &environment.vars,
        &server,
        &values,
        &declared,
    );
    Redactor::new(secrets)
}

/// Logs why the run was not executed, and returns the exit code.
fn refused(environment: &RunEnvironment, error: &RecordError) -> ExitCode {
    match error {
        RecordError::NotOurs(why) => {
            crate::log!("{why}");
            ExitCode::SUCCESS
        }
        RecordError::Store(_) | RecordError::Unreadable { .. } | RecordError::Incomplete { .. } => {
            let text = environment.commands.redactor.text(&error.to_string());
            crate::log!("failed to claim the run: {text}");
            ExitCode::FAILURE
        }
    }
}

async fn carry_out(
    environment: &RunEnvironment,
    record: &RecordHandle,
    claimed: Claimed,
    started: Instant,
    findings: &mut Findings,
) -> Result<RunResult, Ended> {
    let kind = claimed.run.kind;
    let parts = Parts {
        paths: environment.paths.clone(),
        vars: environment.vars.clone(),
        secrets: environment.secrets.clone(),
        record: record.clone(),
        commands: environment.commands.clone(),
        started,
    };
    let session = Session::open(parts, claimed).await?;
    findings.undeclared.clone_from(&session.undeclared);
    findings.registry_hosts.clone_from(&session.registry_hosts);
    let ended = session.execute(kind, findings).await;
    findings.abandoned_lock = session.abandoned_lock();
    findings.took = session.took();
    if findings.began && session.was_refused() {
        findings.refused = Some(session.claimed.clone());
    }
    let redactor = &session.redactor();
    findings.redactor = Some(redactor.clone());
    findings.inventory = findings
        .inventory
        .take()
        .map(|inventory| inventory::redacted(inventory, redactor));
    if let Err(Ended::Failed(failure)) = &ended
        && failure.reason == Reason::StateLocked
    {
        findings.lock = session.lock_in_the_way().map(|lock| redactor.lock(&lock));
    }
    findings.asks = findings.asks.take().map(|asks| redactor.asks(asks));
    ended.map_err(|ended| ended.redacted(redactor))
}

async fn finish(
    environment: &RunEnvironment,
    record: &RecordHandle,
    report: &RunReport,
    findings: &Findings,
) -> ExitCode {
    let from = environment
        .commands
        .stop
        .requested_at()
        .unwrap_or_else(Instant::now);
    let patience = Patience::until(from + environment.commands.grace);
    let details = has_details(report).then(|| RunDetails {
        number: report.number,
        changes: findings.changes.clone(),
        plan: environment.commands.tail.plan(),
        log: environment.commands.tail.excerpt(),
    });
    let details = match &findings.redactor {
        Some(redactor) => details.map(|details| redactor.details(details)),
        None => details,
    };
    let extras = ReportExtras {
        outputs: findings.outputs.as_ref(),
        inventory: findings.inventory.as_ref(),
        unlock: findings.abandoned_lock.as_deref(),
        refused: findings.refused.as_ref(),
        stateless: findings.stateless,
        own_backend: findings.own_backend.as_ref(),
        details: details.as_ref(),
        tail: Some(&environment.commands.tail),
    };
    let recorded = match report::record(record, report, extras, patience).await {
        Ok(recorded) => recorded,
        Err(error) => {
            let failure = environment
                .commands
                .redactor
                .failure(report::unrecorded(&error));
            crate::log!("{}", failure.message);
            let failure = Some(failure);
            RunReport {
                result: RunResult::Failed,
                failure,
                ..report.clone()
            }
        }
    };
    report::write_message(&environment.paths.termination_log, &recorded);
    say_result(&recorded);
    match recorded.result {
        RunResult::Failed => ExitCode::FAILURE,
        RunResult::NoChanges | RunResult::Changes | RunResult::Done | RunResult::Cancelled => {
            ExitCode::SUCCESS
        }
    }
}

/// Whether the operator writes a `TerraformRun` with details for the run: not for a drift check without changes.
fn has_details(report: &RunReport) -> bool {
    (report.kind, report.result) != (RunKind::Drift, RunResult::NoChanges)
}

fn say_result(report: &RunReport) {
    let number = report.number;
    match (report.result, &report.failure) {
        (RunResult::Failed, Some(failure)) => {
            crate::log!("run {number} failed: {}", failure.reason);
        }
        (RunResult::NoChanges, _) => crate::log!("run {number}: no changes"),
        (RunResult::Changes, _) => crate::log!("run {number}: changes found, not applied"),
        (RunResult::Done | RunResult::Failed, _) => crate::log!("run {number}: done"),
        (RunResult::Cancelled, _) => crate::log!("run {number}: cancelled, nothing changed"),
    }
}
