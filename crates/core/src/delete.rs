//! Deletion (rule 13): destroy with what the pin holds, clean up, let go.

mod gaps;
pub(crate) mod kept;

use std::collections::BTreeMap;

use alustan_api::report::RunResult;
use alustan_api::run::{
    BackendInputs, Pin, RunInputs, RunKind, RunPhase, RunRecord, RunSpec, Trigger,
};
use alustan_api::{State, Terraform, names};
use kube::ResourceExt;

use crate::absorb;
use crate::approval;
use crate::build;
use crate::decide::Case;
pub use kept::leaves_everything;
use kept::{Kept, how_to_abandon, is_abandoned};

use crate::inputs;
use crate::retry;
use crate::seen::{Answer, InputsSeen};
use crate::start::{self, Plan};
use crate::status::Situation;
use crate::step::{Decision, Step, Swap};

/// Before anything is removed, the record is swapped for itself: somebody who looks at an old
/// one, in which nothing was applied yet, gets no further than that.
fn let_go(case: &mut Case<'_>, state: bool) {
    let guard = Swap::unchanged(&case.current);
    case.steps.push(Step::SwapRecord(Box::new(guard)));
    case.steps.push(Step::CleanUp { state });
    case.steps.push(Step::RemoveFinalizer);
}

/// What to do with a deleted resource.
pub(crate) fn decide(case: Case<'_>) -> Decision {
    let seen = gaps::filled(case.tf, case.seen, case.current.attempted);
    let case = Case {
        seen: &seen,
        ..case
    };
    if is_abandoned(case.tf) {
        return abandon(case);
    }
    if let Some(run) = absorb::open_run(&case.current).cloned() {
        return under_way(case, &run);
    }
    if destroyed(&case) {
        return nothing_is_left(case);
    }
    let never = case.current.attempted == 0 && case.history.applied.is_none();
    match (Kept::of(case.tf), never) {
        (Some(Kept::Protected), _) => waits(case, kept::protected),
        (Some(Kept::Orphaned | Kept::Suspended) | None, true) => gone(case, "nothing was applied"),
        (Some(Kept::Orphaned), false) => orphan(case),
        (Some(Kept::Suspended), false) => waits(case, kept::suspended),
        (None, false) => destroy_what_exists(case),
    }
}

/// Nothing happens until a person changes the spec.
fn waits(case: Case<'_>, why: fn(&Terraform) -> Situation) -> Decision {
    let situation = why(case.tf);
    case.done(&situation, None, None)
}

fn orphan(mut case: Case<'_>) -> Decision {
    let_go(&mut case, false);
    let left = kept::left(case.tf, case.seen.pin.as_ref());
    let message = format!("spec.deletionPolicy is Orphan: {left}");
    let situation = Situation::busy(State::Destroying, "Orphaned", message);
    case.done(&situation, None, None)
}

/// Everything is destroyed. The status forgets what was applied before the record that says so
/// goes.
fn nothing_is_left(case: Case<'_>) -> Decision {
    let message = "everything is destroyed";
    if !says_applied(case.tf) {
        return gone(case, message);
    }
    let situation = Situation::busy(State::Destroying, "Destroyed", message);
    let now = case.now;
    Decision {
        requeue_at: Some(now),
        ..case.done(&situation, None, None)
    }
}

fn gone(mut case: Case<'_>, message: &str) -> Decision {
    let_go(&mut case, true);
    let situation = Situation::busy(State::Destroying, "Destroyed", message);
    case.done(&situation, None, None)
}

fn destroy_what_exists(case: Case<'_>) -> Decision {
    let Some(run) = destruction(&case) else {
        let message = format!(
            "the Secret {} is gone, and with it what destroy needs{}",
            names::pin(&case.tf.name_any()),
            abandon_hint(&case)
        );
        return case.done(&Situation::stalled("PinLost", message), None, None);
    };
    match retry::verdict(
        &case.history.failures,
        &run.config_hash,
        &case.tf.spec.retry,
        case.now,
    ) {
        retry::Verdict::Go => destroy(case, &run),
        retry::Verdict::WaitUntil(_) | retry::Verdict::Stalled
            if start::asked(case.tf, &case.history) =>
        {
            destroy(case, &run)
        }
        retry::Verdict::WaitUntil(next) => {
            let see = abandon_hint(&case);
            let waiting = build::waiting(&case.history.failures, &case.tf.spec.retry, next, &see);
            case.done(&waiting, None, None)
        }
        retry::Verdict::Stalled => {
            let stalled = build::exhausted(case.tf, &case.history.failures, &abandon_hint(&case));
            case.done(&stalled, None, None)
        }
    }
}

fn abandon_hint(case: &Case<'_>) -> String {
    format!("{}{}", case.last_logs(), how_to_abandon(case.tf))
}

/// Gives up. A run that goes on is ended first, and gently: its state would be lost otherwise.
fn abandon(mut case: Case<'_>) -> Decision {
    let run = absorb::open_run(&case.current).cloned();
    let message = if let Some(run) = run {
        if case.current.phase < RunPhase::Applying {
            case.cancel(&run.job, None);
        } else {
            case.delete_job(&run.job);
        }
        format!(
            "abandoning once the pod of run {} has ended; see kubectl get pods -n {} -l job-name={}",
            case.current.number,
            case.tf.namespace().unwrap_or_default(),
            run.job,
        )
    } else {
        let_go(&mut case, false);
        let left = kept::left(case.tf, case.seen.pin.as_ref());
        format!("abandoned: {left}")
    };
    let situation = Situation::busy(State::Destroying, "Abandoned", message);
    case.done(&situation, None, None)
}

/// `run` goes on: a destroy that is still wanted is helped along, one that applies is waited for
/// (rule 8), any other is cancelled.
fn under_way(mut case: Case<'_>, run: &RunSpec) -> Decision {
    let wanted = run.kind == RunKind::Destroy && Kept::of(case.tf).is_none();
    if wanted || case.current.phase >= RunPhase::Applying {
        return going_on(case, run);
    }
    let number = case.current.number;
    case.cancel(&run.job, None);
    let message = format!(
        "cancelling run {number}, which has not changed anything; waiting for its pod to end: kubectl \
         describe pods -n {} -l job-name={}",
        case.tf.namespace().unwrap_or_default(),
        run.job,
    );
    case.done(
        &Situation::busy(State::Destroying, "Destroying", message),
        None,
        None,
    )
}

/// A run that is not cut short goes on: it is helped along, and people are told if it can neither
/// start nor end.
fn going_on(mut case: Case<'_>, run: &RunSpec) -> Decision {
    let help = start::help(case.tf, case.seen, case.settings);
    case.steps.extend(help);
    let abandon = how_to_abandon(case.tf);
    let blocked = |reason: &str, message: &str| {
        Situation::blocked(State::Destroying, reason, format!("{message}{abandon}"))
    };
    let situation = match (case.stuck(false), case.overdue()) {
        (Some(stuck), _) => Situation {
            look_at: stuck.look_at,
            ..blocked(&stuck.reason, &stuck.message)
        },
        (None, Some(overdue)) => blocked("RunOverdue", &overdue),
        (None, None) => Situation {
            look_at: case.look_due(),
            ..Situation::busy(State::Destroying, "Destroying", going(&case, run))
        },
    };
    case.done(&situation, None, None)
}

fn going(case: &Case<'_>, run: &RunSpec) -> String {
    let kept = Kept::of(case.tf);
    if run.kind == RunKind::Destroy && kept.is_none() {
        return case.what_runs();
    }
    let what = match run.kind {
        RunKind::Destroy => "destroying",
        RunKind::Apply | RunKind::Plan | RunKind::Drift => "applying",
    };
    let then = kept.map_or("destroying once it is done", Kept::after_the_run);
    let number = case.current.number;
    format!("run {number} is {what} and is not cut short; {then}")
}

/// Whether the status says that something is applied.
pub(crate) fn says_applied(tf: &Terraform) -> bool {
    tf.status
        .as_ref()
        .is_some_and(|status| status.last_applied.is_some())
}

/// Whether the last run destroyed everything.
fn destroyed(case: &Case<'_>) -> bool {
    let last = case.history.reports.first();
    last.is_some_and(|report| {
        report.kind == RunKind::Destroy
            && report.number == case.current.number
            && matches!(report.result, RunResult::Done | RunResult::NoChanges)
    })
}

/// The run that destroys what exists, if the pin is there.
fn destruction(case: &Case<'_>) -> Option<Plan> {
    let pin = case.seen.pin.as_ref()?;
    let pin = pin.of_what_exists(case.current.attempted).clone();
    let inputs = live(case, &pin);
    let hash = inputs::config_hash(&case.record.key, &pin.tag, &inputs, case.seen.found());
    let config_hash = format!("destroy {hash}");
    let trigger = if start::asked(case.tf, &case.history) {
        Trigger::Requested
    } else {
        trigger(case, &config_hash)
    };
    let run = Plan {
        kind: RunKind::Destroy,
        trigger,
        inputs,
        image: pin.image,
        tag: pin.tag,
        revision: pin.revision,
        context: pin.context,
        artifact: pin.artifact,
        unpack: false,
        config_hash,
    };
    let gone = case.history.lost_image.as_ref() == Some(&run.image);
    Some(match pin.base {
        Some(base) if gone => in_base_image(case, run, base),
        Some(_) | None => run,
    })
}

/// `run` where its image is gone: in the base image, which unpacks the context.
fn in_base_image(case: &Case<'_>, run: Plan, base: String) -> Plan {
    let pushed = case.seen.artifact.as_ref().and_then(Answer::value);
    let artifact = pushed.filter(|_| is_in_repository(case, &run)).cloned();
    match artifact.or_else(|| run.artifact.clone()) {
        Some(artifact) => Plan {
            image: base,
            artifact: Some(artifact),
            unpack: true,
            ..run
        },
        None => run,
    }
}

/// Whether the repository still has what `run` is about.
fn is_in_repository(case: &Case<'_>, run: &Plan) -> bool {
    let source = case.seen.source.value();
    source.is_some_and(|source| run.context.as_ref() == Some(&source.context))
}

/// Starts `run`. Where it unpacks a context that the repository still has, that is pushed first:
/// who removed the image may have removed the context, too.
fn destroy(mut case: Case<'_>, run: &Plan) -> Decision {
    let asked = &case.seen.artifact;
    if run.unpack && is_in_repository(&case, run) && matches!(asked, None | Some(Answer::Pending)) {
        let push = asked.is_none().then_some(Step::PushContext);
        case.steps.extend(push);
        let message = "the runner image is gone; pushing the module to the registry, for a run in \
                       the base image";
        let pushing = Situation::busy(State::Destroying, "PushingContext", message);
        return case.done(&pushing, None, None);
    }
    case.run(run, None, None)
}

fn trigger(case: &Case<'_>, config_hash: &str) -> Trigger {
    let failures = &case.history.failures;
    if failures.of == config_hash && failures.at.is_some() {
        start::again(failures)
    } else {
        Trigger::Deleted
    }
}

/// Live values first, the pin as the fallback: a destroy script mended after the deletion counts.
fn live(case: &Case<'_>, pin: &Pin) -> RunInputs {
    let mut inputs = pin.inputs.clone();
    let seen = case.seen.found();
    inputs.variables.extend(inputs::variables(case.tf));
    let secret = seen.runner.values().flat_map(BTreeMap::keys);
    inputs.secret_environment.extend(secret.cloned());
    inputs.environment = gaps::environment(seen);
    inputs.scripts.clone_from(&seen.scripts);
    if is_same_backend(case, seen, &inputs.backend) {
        inputs.backend.environment.clone_from(&seen.backend);
    }
    inputs.timeouts = inputs::time_limits(case.tf);
    inputs.approval = approval::inputs(case.tf, true);
    inputs.plan_secret = approval::may_ask(case.tf, true).then(|| names::plan(&case.tf.name_any()));
    inputs.adopt = false;
    slots(case.tf, &case.current, &mut inputs);
    inputs
}

/// Whether the resource still names the backend of the pin: only then are its credentials those of
/// the state.
fn is_same_backend(case: &Case<'_>, seen: &InputsSeen, pinned: &BackendInputs) -> bool {
    let own = pinned.kind.as_deref().unwrap_or("of the module's own");
    let module = (!pinned.write_block).then_some(own);
    let live = inputs::backend(case.tf, module, seen, case.current.slots_wanted);
    live.is_ok_and(|live| (&live.kind, &live.config) == (&pinned.kind, &pinned.config))
}

/// The state may have grown since the pin was written.
fn slots(tf: &Terraform, current: &RunRecord, inputs: &mut RunInputs) {
    if let Some(managed) = &mut inputs.backend.managed {
        let wanted = inputs::managed_state(&tf.name_any(), current.slots_wanted);
        if wanted.slots.len() > managed.slots.len() {
            *managed = wanted;
        }
    }
}
