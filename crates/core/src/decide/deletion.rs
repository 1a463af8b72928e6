//! Deletion (rule 13): destroy, clean-up and removal of the finalizer.

mod destroy_run;
mod pin_fallback;

use alustan_api::labels::Component;
use alustan_api::report::RunResult;
use alustan_api::run::{RunKind, RunPhase, RunSpec};
use alustan_api::{NotificationEvent, Reason, State, Terraform, names};
use k8s_openapi::jiff::Timestamp;
use kube_core::ResourceExt;

use crate::decide::cancellation::by_user;
use crate::decide::case::{RECHECK_INTERVAL, ReconcileCase};
use crate::decide::image_build::{self, ImageAvailability, MissingImage};
use crate::decide::image_outcome::ImageWait;
use crate::decide::start_run::RunRequest;
use crate::decide::{approval, deletion_hold, retry, state_volume};
use crate::model::facts::{self, DeletionHold, is_abandoned, status_has_attempt};
use crate::model::image::ImagePlan;
use crate::model::summary::{self, Summary, abandon_suffix, with_unknown_history};
use crate::model::{approval_policy, pod_options};
use crate::observed::{Answer, ForeignState};
use crate::queue::Class;
use crate::status::notifications::{FINAL_DELIVERY_TIMEOUT, is_subscribed};
use crate::step::{Decision, Step, Swap};

/// Adds the steps that clean up and remove the finalizer. The first step records the clean-up in the run record, by compare-and-swap. If the
/// observed run record is stale, this write fails and the finalizer stays, because the current run record may contain an apply. After this
/// write, the start of a run that another reconcile decided before fails.
fn finalize(case: &mut ReconcileCase<'_>, clean_up: Step) {
    case.current.cleaned_up = true;
    let guard = Swap::unchanged(&case.current);
    case.steps.push(Step::SwapRecord(Box::new(guard)));
    case.steps.extend(case.empty_shared_cache());
    case.steps.push(clean_up);
    case.steps.push(Step::RemoveFinalizer);
}

/// Returns the step that deletes all objects of the resource except those with state. An unsaved state is kept together with the run
/// record, which contains its encryption key.
fn clean_up_except_state(case: &ReconcileCase<'_>) -> Step {
    let seen = case.seen;
    let on_volume = state_volume::may_hold_state(case.tf, seen) || seen.foreign_state.claim;
    let unsaved_on_volume = state_volume::may_hold_unsaved(seen, &case.history);
    let mut kept_components = vec![Component::State];
    if on_volume || unsaved_on_volume {
        kept_components.push(Component::Cache);
    }
    if case.record.unsaved || unsaved_on_volume {
        kept_components.extend([Component::Report, Component::Record]);
    }
    Step::CleanUp {
        kept: kept_components,
    }
}

/// Returns the decision for a deleted resource.
pub(super) fn decide(case: ReconcileCase<'_>) -> Decision {
    let seen = pin_fallback::with_pinned_inputs(case.tf, case.seen, case.current.attempted);
    let case = ReconcileCase {
        seen: &seen,
        ..case
    };
    if is_abandoned(case.tf) {
        return abandon(case);
    }
    if let Some(run) = facts::open_run(&case.current).cloned() {
        return with_active_run(case, &run);
    }
    if destroyed(&case) {
        return after_destroy(case);
    }
    let never_applied = case.current.attempted == 0 && case.history.applied.is_none();
    match (DeletionHold::of(case.tf), never_applied) {
        (Some(DeletionHold::Protected), _) => held(case, deletion_hold::protected),
        (
            Some(DeletionHold::Orphaned | DeletionHold::Suspended | DeletionHold::PlanOnly) | None,
            true,
        ) => nothing_was_applied(case),
        (Some(DeletionHold::Orphaned), false) => orphan(case),
        (Some(DeletionHold::Suspended), false) => held(case, deletion_hold::suspended),
        (Some(DeletionHold::PlanOnly), false) => held(case, deletion_hold::plan_only),
        (None, false) => destroy_what_exists(case),
    }
}

/// Returns the decision with the summary that `summary_of` builds. The operator starts nothing until the spec changes.
fn held(case: ReconcileCase<'_>, summary_of: fn(&Terraform) -> Summary) -> Decision {
    let summary = summary_of(case.tf);
    case.done(&summary, None, None)
}

fn orphan(mut case: ReconcileCase<'_>) -> Decision {
    let clean_up = clean_up_except_state(&case);
    finalize(&mut case, clean_up);
    let kept_objects = deletion_hold::kept_objects(&case);
    let message = format!("spec.deletionPolicy is Orphan: {kept_objects}");
    let summary = Summary::busy(State::Destroying, Reason::Orphaned, message);
    case.done(&summary, None, None)
}

/// Returns the decision after a successful destroy. Removes the last apply from status first; a later reconcile cleans up. Clean-up deletes
/// the run record, which is the only proof of the destroy: with an apply in status and without a run record, the operator would report that
/// the run record and the pin are missing.
fn after_destroy(case: ReconcileCase<'_>) -> Decision {
    let message = "all managed objects are destroyed";
    let requeue_at = match notification_deadline(&case) {
        _ if status_has_attempt(case.tf) => case.now,
        Some(until) => until,
        None => return cleaned_up(case, message),
    };
    let summary = Summary {
        requeue_at: Some(requeue_at),
        ..Summary::busy(State::Destroying, Reason::Destroyed, message)
    };
    case.done(&summary, None, None)
}

/// Returns the time until which the finalizer stays, so that notification `Destroyed` is delivered: the notification cannot be sent after
/// the removal of the finalizer. `None` if there is nothing to wait for.
fn notification_deadline(case: &ReconcileCase<'_>) -> Option<Timestamp> {
    let event = NotificationEvent::Destroyed;
    let notices = &case.history.notices;
    let pending_notice = notices.due.iter().find(|notice| notice.event == event);
    let since = match pending_notice {
        Some(notice) => notice.since,
        None => case.history.reports.first()?.finished_at,
    };
    let deadline = since + FINAL_DELIVERY_TIMEOUT;
    let is_undelivered = is_subscribed(case.tf, &case.seen.notified, event)
        && !notices.finished.contains_key(&event)
        && case.now < deadline;
    is_undelivered.then_some(deadline)
}

/// Cleans up a resource that applied nothing, and removes the finalizer. A state that the resource adopted or a user pushed may be the only
/// copy, so it is kept as orphaned.
fn nothing_was_applied(mut case: ReconcileCase<'_>) -> Decision {
    let message = "nothing was applied";
    let ForeignState { secrets, claim } = case.seen.foreign_state;
    let location = match (secrets, claim) {
        (false, false) => return cleaned_up(case, message),
        (true, false) => deletion_hold::in_secrets(case.tf),
        (false, true) => deletion_hold::on_volume(case.tf),
        (true, true) => deletion_hold::in_secrets_and_on_volume(case.tf),
    };
    let state_component = secrets.then_some(Component::State);
    let cache_component = claim.then_some(Component::Cache);
    let clean_up = Step::CleanUp {
        kept: state_component.into_iter().chain(cache_component).collect(),
    };
    finalize(&mut case, clean_up);
    let message = format!("{message}; the adopted or pushed state is kept {location}");
    let summary = Summary::busy(State::Destroying, Reason::Orphaned, message);
    case.done(&summary, None, None)
}

fn cleaned_up(mut case: ReconcileCase<'_>, message: &str) -> Decision {
    let clean_up = Step::CleanUp { kept: Vec::new() };
    finalize(&mut case, clean_up);
    let summary = Summary::busy(State::Destroying, Reason::Destroyed, message);
    case.done(&summary, None, None)
}

fn destroy_what_exists(mut case: ReconcileCase<'_>) -> Decision {
    if let Some(blocked) = case.destroy_blocked() {
        return case.done(&blocked, None, None);
    }
    if let (Some(_), Some(conflict)) = (&case.seen.pin, &case.seen.conflict) {
        let message = format!("{}{}", conflict.message, abandon_suffix(case.tf));
        let summary = Summary {
            requeue_at: Some(case.now + RECHECK_INTERVAL),
            ..Summary::stalled(&conflict.reason, message)
        };
        return case.done(&summary, None, None);
    }
    match destroy_run::from_pin(&case) {
        Some(run) => attempt(case, run, None),
        None if is_known(&case) => pin_lost(case),
        None => destroy_from_spec(case),
    }
}

/// Whether it is known that an apply has run: history or status contains an apply.
fn is_known(case: &ReconcileCase<'_>) -> bool {
    let mut reports = case.history.reports.iter();
    case.history.applied.is_some()
        || status_has_attempt(case.tf)
        || reports.any(|report| report.kind == RunKind::Apply)
}

fn pin_lost(case: ReconcileCase<'_>) -> Decision {
    let state = deletion_hold::managed_state(&case);
    let message = format!(
        "Secret {} is missing, so destroy cannot run; restore it from a backup{}{}",
        names::pin(&case.tf.name_any()),
        state.map_or_else(String::new, |state| format!("; the state is {state}")),
        abandon_hint(&case)
    );
    case.done(&Summary::stalled(Reason::PinLost, message), None, None)
}

/// Returns the decision to destroy with the current spec: the resource has no pin, and it is unknown whether anything was applied. If
/// nothing was applied, the state is empty, and the destroy succeeds.
fn destroy_from_spec(mut case: ReconcileCase<'_>) -> Decision {
    let target = match case.target() {
        Ok(target) => target,
        Err(summary) => {
            let summary = with_unknown_history(case.tf, summary);
            return case.done(&summary, None, None);
        }
    };
    let runner = match &target.runner {
        Ok(runner) => runner.clone(),
        Err(summary) => {
            let summary = with_unknown_history(case.tf, summary.clone());
            return case.done(&summary, None, None);
        }
    };
    case.store_base_image(runner.base);
    let image = runner.plan;
    match image_build::image(&case, &target.source, &image) {
        ImageAvailability::Ready(digest) => {
            let wanted = match &target.wanted {
                Ok(wanted) => wanted.clone(),
                Err(missing) => {
                    let summary = with_unknown_history(case.tf, missing.clone());
                    return case.done(&summary, Some(&image), Some(digest));
                }
            };
            let run = destroy_run::from_spec(&case, target.source, wanted, &image, &digest);
            attempt(case, run, Some((image, digest)))
        }
        ImageAvailability::Missing(missing) => {
            let summary = with_unknown_history(case.tf, missing.summary);
            let missing = MissingImage {
                summary,
                ..*missing
            };
            let image_wait = ImageWait {
                class: Class::Change,
                keeps_ready: false,
            };
            case.without_image(&image, missing, image_wait)
        }
    }
}

/// Starts `run`. While a backoff, an exhausted retry budget or a plan that waits for approval prevents the start, only reports the cause in
/// status.
fn attempt(
    case: ReconcileCase<'_>,
    mut run: RunRequest,
    image: Option<(ImagePlan, String)>,
) -> Decision {
    if let Some(lost) = case.volume_lost(&run.inputs.backend) {
        return case.done(&lost, None, None);
    }
    let (tf, history) = (case.tf, &case.history);
    let policy_digest = approval_policy::policy_digest(tf, true);
    let failure_key = pod_options::with_digest(
        approval::failure_key(&run.config.hash, &policy_digest),
        &case.pod_digest(true),
    );
    run.trigger = destroy_run::trigger(&case, &failure_key);
    run.kind = approval_policy::kind(tf, true);
    if facts::asked(tf, history) {
        return destroy(case, &run, image);
    }
    let (failures, hint) = (&history.failures, abandon_hint(&case));
    let summary = match retry::verdict(failures, &failure_key, &tf.spec.retry, case.now) {
        retry::Verdict::WaitUntil(next) => {
            summary::retry_summary(failures, &tf.spec.retry, next, &hint)
        }
        retry::Verdict::Stalled => summary::retries_exhausted(tf, failures, &hint),
        retry::Verdict::Go => match approval::pending(tf, history, &run.config.hash, true) {
            None => return destroy(case, &run, image),
            Some(plan) if approval::is_approved(tf, history, plan) => {
                run.kind = RunKind::Destroy;
                run.trigger = approval::trigger(plan);
                approval::approve(&mut run.inputs.approval, plan);
                return destroy(case, &run, image);
            }
            Some(plan) => {
                let summary = case.pending_summary(plan);
                let message = format!("{}{}", summary.message, abandon_suffix(tf));
                Summary { message, ..summary }
            }
        },
    };
    case.done(&summary, None, None)
}

fn abandon_hint(case: &ReconcileCase<'_>) -> String {
    format!("{}{}", case.last_logs(), abandon_suffix(case.tf))
}

/// Abandons the resource (annotation `alustan.io/abandon`): removes the finalizer and keeps all managed objects. If a run is active, stops
/// the run first. The pod of the run then has the termination grace period to save the state.
fn abandon(mut case: ReconcileCase<'_>) -> Decision {
    let run = facts::open_run(&case.current).cloned();
    let message = if let Some(run) = run {
        if case.current.phase < RunPhase::Applying {
            case.cancel(&run.job, None);
        } else {
            case.delete_job(&run.job);
        }
        format!(
            "the resource is abandoned once the pod of run {} has ended; see kubectl get pods -n \
             {} -l job-name={}",
            case.current.number,
            case.tf.namespace().unwrap_or_default(),
            run.job,
        )
    } else {
        let clean_up = clean_up_except_state(&case);
        finalize(&mut case, clean_up);
        let kept_objects = deletion_hold::kept_objects(&case);
        format!("abandoned: {kept_objects}")
    };
    let summary = Summary::busy(State::Destroying, Reason::Abandoned, message);
    case.done(&summary, None, None)
}

/// Returns the decision for a deleted resource while `run` is active: continues a destroy that is still wanted, waits for an apply (rule
/// 8) unless a user cancels it, and cancels any other run.
fn with_active_run(mut case: ReconcileCase<'_>, run: &RunSpec) -> Decision {
    let wanted = run.destroys && DeletionHold::of(case.tf).is_none();
    let cancellation = case.user_cancellation();
    let continues = wanted && !case.lost_approval(run) && cancellation.is_none();
    if continues || case.current.phase >= RunPhase::Applying {
        return continue_run(case, run);
    }
    let number = case.current.number;
    case.cancel(&run.job, cancellation);
    let message = format!(
        "cancelling run {number}, which has not changed any object; waiting for its pod to end; \
         see kubectl describe pods -n {} -l job-name={}",
        case.tf.namespace().unwrap_or_default(),
        run.job,
    );
    case.done(
        &Summary::busy(State::Destroying, Reason::Destroying, message),
        None,
        None,
    )
}

/// Returns the decision for an active run that continues: creates its missing objects, and reports in status if the run cannot start or has
/// exceeded its deadline.
fn continue_run(mut case: ReconcileCase<'_>, run: &RunSpec) -> Decision {
    case.continue_or_cancel(run);
    let abandon = abandon_suffix(case.tf);
    let blocked = |reason: String, message: &str| {
        Summary::blocked(State::Destroying, reason, format!("{message}{abandon}"))
    };
    let options_changed = run.pod != case.pod_digest(run.destroys);
    let summary = match (case.check_startup(options_changed), case.overdue()) {
        (Some(stuck), _) => Summary {
            requeue_at: stuck.requeue_at,
            ..blocked(stuck.reason, &stuck.message)
        },
        (None, Some(overdue)) => blocked(Reason::RunDeadlineExceeded.into(), &overdue),
        (None, None) => Summary {
            requeue_at: case.next_deadline(),
            ..Summary::busy(
                State::Destroying,
                Reason::Destroying,
                run_message(&case, run),
            )
        },
    };
    case.done(&summary, None, None)
}

fn run_message(case: &ReconcileCase<'_>, run: &RunSpec) -> String {
    let hold = DeletionHold::of(case.tf);
    if (run.destroys && hold.is_none()) || by_user(&case.current).is_some() {
        return case.describe_run();
    }
    let activity = match run.kind {
        RunKind::Destroy => "destroying",
        RunKind::Apply | RunKind::Plan | RunKind::Drift => "applying",
    };
    let next_step = hold.map_or("destroy follows", DeletionHold::after_run);
    let number = case.current.number;
    format!("run {number} is {activity} and is not interrupted; {next_step}")
}

/// Whether the last run was a destroy that succeeded, or that had nothing to destroy.
fn destroyed(case: &ReconcileCase<'_>) -> bool {
    let run = case.current.run.as_ref();
    let last = case.history.reports.first();
    last.zip(run).is_some_and(|(report, run)| {
        run.destroys
            && report.number == case.current.number
            && matches!(report.result, RunResult::Done | RunResult::NoChanges)
    })
}

/// Starts `run`. If the pod of `run` unpacks the context of the current commit, pushes this context to the registry first, because the
/// context may have been deleted from the registry together with the image.
fn destroy(
    mut case: ReconcileCase<'_>,
    run: &RunRequest,
    image: Option<(ImagePlan, String)>,
) -> Decision {
    let pushed_context = &case.image.artifact;
    let in_repository = destroy_run::is_in_repository(&case, run);
    if run.unpack && in_repository && matches!(pushed_context, None | Some(Answer::Pending)) {
        let push = pushed_context.is_none().then_some(Step::PushContext);
        case.steps.extend(push);
        let message = "the runner image is missing; pushing the context to the registry for a run \
                       in the base image";
        let pushing = Summary::busy(State::Destroying, Reason::PushingContext, message);
        return case.done(&pushing, None, None);
    }
    if run.unpack && matches!(case.image.git_token, Some(Answer::Pending)) {
        let message = "requesting a token of the GitHub App of spec.gitRepo.githubApp for a run in the \
                       base image";
        let waiting = Summary::busy(State::Destroying, Reason::Destroying, message);
        return case.done(&waiting, None, None);
    }
    match image {
        Some((plan, digest)) => case.run(run, Some(&plan), Some(digest)),
        None => case.run(run, None, None),
    }
}
