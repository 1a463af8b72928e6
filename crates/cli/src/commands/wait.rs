//! `wait`: waits until a resource is ready or cannot become ready.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use alustan_api::ObjectKey;
use alustan_api::Terraform;
use alustan_api::conditions::Kind;
use alustan_api::revision;
use clap::Args;
use futures::StreamExt;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, watch_object};

use crate::cluster::Cluster;
use crate::condition::{holds, reason};
use crate::error::Error;
use crate::print;

/// Refresh interval of the progress line on a terminal.
const TICK: Duration = Duration::from_secs(1);
/// Time that the operator may need to fetch a commit after `gitRepo.interval` has elapsed.
const READ: Duration = Duration::from_secs(10);

/// Wait until a resource is ready, and show the progress.
///
/// If the resource is stalled at the start, the command waits for one more `gitRepo.interval` (or `source.oci.interval`), in which the operator
/// reads a commit that was just pushed. With --revision or --generation, the command ignores conditions until the
/// status has this revision or generation.
#[derive(Debug, Args)]
pub(crate) struct Wait {
    /// Name of the resource.
    name: String,
    /// Timeout, for example 90s, 10m, 1h30m.
    #[arg(long, default_value = "10m", value_parser = duration)]
    timeout: Duration,
    #[command(flatten)]
    wanted: WaitTarget,
}

/// Revision and generation to wait for.
#[derive(Debug, Default, Args)]
struct WaitTarget {
    /// Commit to wait for, at least 7 of its digits: `--revision $(git rev-parse HEAD)`. For a source other than a git repository: the
    /// digest in status.source.revision.
    #[arg(long, value_parser = commit)]
    revision: Option<String>,
    /// Minimum `metadata.generation` to wait for.
    #[arg(long)]
    generation: Option<i64>,
}

impl WaitTarget {
    /// Whether the status of `tf` has the wanted revision, and the wanted generation or a later one.
    fn is_reached(&self, tf: &Terraform) -> bool {
        let status = tf.status.as_ref();
        let observed = status.and_then(|status| status.observed_generation);
        let is_observed = |wanted| observed.is_some_and(|observed| observed >= wanted);
        let source = status.and_then(|status| Some(&status.source.as_ref()?.revision));
        let applied = status.and_then(|status| status.last_applied.as_ref()?.revision.as_ref());
        let is_revision = |commit: &String| {
            source
                .into_iter()
                .chain(applied)
                .any(|revision| revision::digits(revision).starts_with(commit))
        };
        self.generation.is_none_or(is_observed) && self.revision.as_ref().is_none_or(is_revision)
    }

    fn is_anything(&self) -> bool {
        self.revision.is_none() && self.generation.is_none()
    }
}

impl Wait {
    /// Waits until the resource is ready, for at most `timeout`.
    pub(crate) async fn run(&self, cluster: &Cluster) -> Result<(), Error> {
        let tf = cluster.resource(&self.name).await?;
        let mut progress = Progress::new();
        progress.seen(&tf)?;
        let ending = tokio::time::timeout(self.timeout, self.watch(cluster, &mut progress)).await;
        progress.end();
        ending.unwrap_or_else(|_| {
            let key = cluster.key(&self.name);
            let (timeout, last) = (self.timeout, &progress.last);
            Err(Error::Refused(format!(
                "{key} is not ready after {timeout:?}: {last}; see `kubectl describe tf {} -n {}`",
                key.name, key.namespace
            )))
        })
    }

    /// Watches the resource until it is ready or cannot become ready.
    async fn watch(&self, cluster: &Cluster, progress: &mut Progress) -> Result<(), Error> {
        let seen = watch_object(cluster.api::<Terraform>(), &self.name).default_backoff();
        let mut seen = std::pin::pin!(seen);
        let mut tick = tokio::time::interval(TICK);
        let mut patience = Patience::default();
        loop {
            tokio::select! {
                _ = tick.tick() => {
                    progress.draw();
                    patience.check()?;
                }
                found = seen.next() => match found {
                    Some(Err(error)) => match forbidden(&error) {
                        Some(why) => {
                            let key = cluster.key(&self.name);
                            return Err(Error::Refused(format!("cannot watch {key}: {why}")));
                        }
                        // The watch retries until the timeout.
                        None => progress.trouble(&error),
                    },
                    Some(Ok(Some(tf))) => {
                        progress.seen(&tf)?;
                        let verdict = Verdict::of(&tf, &self.wanted);
                        if verdict == Verdict::Ready {
                            return Ok(());
                        }
                        patience.seen(verdict, self.wanted.is_anything().then_some(&tf))?;
                    }
                    Some(Ok(None)) | None => return Err(gone(&cluster.key(&self.name))),
                },
            }
        }
    }
}

/// Decides when the command stops waiting for a resource that cannot become ready.
#[derive(Default)]
struct Patience {
    has_begun: bool,
    /// Deadline of a resource that was stalled at the start of the wait, and the reason why it is stalled.
    stalled: Option<(Instant, String)>,
}

impl Patience {
    /// Records a verdict. `tf` is `None` with --revision or --generation. If `tf` is set and the first verdict is
    /// [`Verdict::Stalled`], the command waits for one more polling interval: the operator may fetch a commit that fixes
    /// the resource.
    ///
    /// # Errors
    /// The reason why the resource cannot become ready.
    fn seen(&mut self, verdict: Verdict, tf: Option<&Terraform>) -> Result<(), Error> {
        let is_first = !std::mem::replace(&mut self.has_begun, true);
        let stalled = match verdict {
            Verdict::Ready | Verdict::NotYet => {
                self.stalled = None;
                return Ok(());
            }
            Verdict::Deleted(why) => return Err(Error::Refused(why)),
            Verdict::Stalled(why) => why,
        };
        let until = match (&self.stalled, tf) {
            (Some((until, _)), _) => *until,
            (None, Some(tf)) if is_first => {
                let source = tf.spec.module_source();
                let interval = source.and_then(|source| source.interval());
                let interval = interval.map_or(Duration::ZERO, Duration::from);
                Instant::now() + interval.saturating_add(READ)
            }
            (None, _) => return Err(Error::Refused(stalled)),
        };
        self.stalled = Some((until, stalled));
        Ok(())
    }

    /// Checks the deadline of a stalled resource.
    ///
    /// # Errors
    /// The reason why the resource is still stalled when its deadline has passed.
    fn check(&mut self) -> Result<(), Error> {
        match self.stalled.take_if(|(until, _)| *until <= Instant::now()) {
            Some((_, why)) => Err(Error::Refused(why)),
            None => Ok(()),
        }
    }
}

/// Returns the message of the API server if the user may not watch the resource.
pub(crate) fn forbidden(error: &watcher::Error) -> Option<&str> {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
            if status.is_forbidden() =>
        {
            Some(&status.message)
        }
        _ => None,
    }
}

pub(crate) fn gone(key: &ObjectKey) -> Error {
    Error::Refused(format!("{key} was deleted during the wait"))
}

/// Parses a duration in the format of Kubernetes. Refuses negative durations.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let parsed: kube::core::Duration = text
        .parse()
        .map_err(|error| format!("{error}; expected for example 90s, 10m or 1h30m"))?;
    if parsed.is_negative() {
        return Err("must not be negative".to_owned());
    }
    Ok(parsed.into())
}

/// Parses a commit: 7 to 64 hexadecimal digits. A digest may have the prefix `sha256:`.
fn commit(text: &str) -> Result<String, String> {
    let text = revision::digits(text);
    let is_commit =
        (7..=64).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_commit {
        Ok(text.to_ascii_lowercase())
    } else {
        Err("expected 7 to 64 hexadecimal digits, for example $(git rev-parse HEAD)".to_owned())
    }
}

/// Whether the current spec of a resource is applied, or can still be applied, according to its status.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// The spec is applied.
    Ready,
    /// The resource is being deleted. Contains the message for the user.
    Deleted(String),
    /// Only a change of the spec, the repository or the cluster can make the resource ready. Contains the message for the user.
    Stalled(String),
    /// The operator has not finished the reconciliation.
    NotYet,
}

impl Verdict {
    fn of(tf: &Terraform, wanted: &WaitTarget) -> Self {
        if tf.metadata.deletion_timestamp.is_some() {
            Self::Deleted(format!(
                "{} is being deleted: {}",
                ObjectKey::of(tf),
                message(tf)
            ))
        } else if !wanted.is_reached(tf) {
            Self::NotYet
        } else if holds(tf, Kind::Ready) {
            Self::Ready
        } else if holds(tf, Kind::Stalled) {
            Self::Stalled(format!("{} is stalled: {}", ObjectKey::of(tf), message(tf)))
        } else {
            Self::NotYet
        }
    }
}

fn message(tf: &Terraform) -> &str {
    let status = tf.status.as_ref();
    status.map_or("not reconciled by the operator yet", |status| {
        &status.message
    })
}

/// Describes the progress in one line: `Planning  Running  run 3  planning, run 3 (spec); …`.
pub(crate) fn describe(tf: &Terraform) -> String {
    let status = tf.status.as_ref();
    let state = status.map(|status| status.state).unwrap_or_default();
    let run = status.and_then(|status| status.run);
    let run = run.map_or_else(|| "no run yet".to_owned(), |run| format!("run {run}"));
    let reason = reason(tf).unwrap_or("-");
    let message: Vec<_> = message(tf).split_whitespace().collect();
    format!("{state:?}  {reason}  {run}  {}", message.join(" "))
}

/// Progress output. A terminal has one line that is overwritten; other outputs have one line per change.
struct Progress {
    since: Instant,
    live: bool,
    last: String,
}

impl Progress {
    fn new() -> Self {
        Self {
            since: Instant::now(),
            live: std::io::stdout().is_terminal(),
            last: String::new(),
        }
    }

    /// Shows the progress of `tf`.
    fn seen(&mut self, tf: &Terraform) -> Result<(), Error> {
        let now = describe(tf);
        let changed = now != self.last;
        self.last = now;
        if self.live {
            self.draw();
        } else if changed {
            print::line(&format!("{}  {}", self.elapsed(), self.last))?;
        }
        Ok(())
    }

    /// Redraws the progress line. Disables line wrapping, because only a single line can be overwritten.
    fn draw(&self) {
        if self.live {
            let (elapsed, last) = (self.elapsed(), print::visible(&self.last));
            let mut out = std::io::stdout().lock();
            let _ = write!(out, "\r\x1b[2K\x1b[?7l{elapsed}  {last}\x1b[?7h");
            let _ = out.flush();
        }
    }

    fn trouble(&self, error: &watcher::Error) {
        self.end();
        print::note(&format!("watch failed, retrying: {error}"));
    }

    /// Ends the progress line, so that later output starts on a new line.
    fn end(&self) {
        if self.live {
            let _ = writeln!(std::io::stdout());
        }
    }

    fn elapsed(&self) -> String {
        let seconds = self.since.elapsed().as_secs();
        format!("{:02}:{:02}", seconds / 60, seconds % 60)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use k8s_openapi::jiff::Timestamp;
    use rstest::rstest;
    use serde_json::json;

    #[rstest]
    #[case("90s", Some(90))]
    #[case("10m", Some(600))]
    #[case("1h30m", Some(5400))]
    #[case("0", Some(0))]
    #[case("10", None)]
    #[case("-1m", None)]
    #[case("soon", None)]
    fn duration_uses_kubernetes_syntax(#[case] text: &str, #[case] seconds: Option<u64>) {
        let wanted = seconds.map(Duration::from_secs);
        assert_eq!(duration(text).ok(), wanted);
    }

    /// Returns a resource of generation 2 with one condition.
    fn with_condition(kind: &str, status: &str, generation: i64) -> Terraform {
        serde_json::from_value(json!({
            "apiVersion": "alustan.io/v1alpha1", "kind": "Terraform",
            "metadata": {"name": "web", "namespace": "team", "generation": 2},
            "spec": {
                "gitRepo": {"url": "https://127.0.0.1:1/a/b"},
                "containerRegistry": {"imageName": "127.0.0.1:1/a/b"},
            },
            "status": {
                "state": "Failed", "message": "why", "run": 3,
                "conditions": [{
                    "type": kind, "status": status, "reason": "R", "message": "",
                    "observedGeneration": generation,
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                }],
            },
        }))
        .unwrap()
    }

    #[rstest]
    #[case("Ready", "True", 2, Verdict::Ready)]
    #[case::ready_at_old_generation("Ready", "True", 1, Verdict::NotYet)]
    #[case("Ready", "False", 2, Verdict::NotYet)]
    #[case("Stalled", "True", 2, Verdict::Stalled("team/web is stalled: why".into()))]
    #[case::stalled_at_old_generation("Stalled", "True", 1, Verdict::NotYet)]
    fn conditions_of_an_old_generation_are_ignored(
        #[case] kind: &str,
        #[case] status: &str,
        #[case] generation: i64,
        #[case] wanted: Verdict,
    ) {
        let tf = with_condition(kind, status, generation);
        assert_eq!(Verdict::of(&tf, &WaitTarget::default()), wanted);
    }

    #[test]
    fn wait_fails_for_a_resource_being_deleted() {
        let mut tf = with_condition("Ready", "True", 2);
        tf.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        let verdict = Verdict::of(&tf, &WaitTarget::default());
        assert!(matches!(verdict, Verdict::Deleted(_)));
        assert!(Patience::default().seen(verdict, Some(&tf)).is_err());
    }

    #[rstest]
    #[case::any(None, None, true)]
    #[case::read(Some("abcdef1"), None, true)]
    #[case::applied(Some("1234567890"), None, true)]
    #[case::another(Some("abcdef2"), None, false)]
    #[case::observed(None, Some(2), true)]
    #[case::not_observed(None, Some(3), false)]
    #[case::one_of_both(Some("abcdef1"), Some(3), false)]
    fn conditions_before_the_wanted_revision_are_ignored(
        #[case] revision: Option<&str>,
        #[case] generation: Option<i64>,
        #[case] reached: bool,
    ) {
        let mut tf = with_condition("Stalled", "True", 2);
        let status = json!({
            "observedGeneration": 2, "source": {"revision": "abcdef1234567890"},
            "lastApplied": {
                "revision": "1234567890abcdef", "configHash": "", "time": "2026-01-01T00:00:00Z",
            },
        });
        let mut whole = serde_json::to_value(&tf.status).unwrap();
        let fields = whole.as_object_mut().unwrap();
        fields.extend(status.as_object().unwrap().clone());
        tf.status = serde_json::from_value(whole).unwrap();
        let wanted = WaitTarget {
            revision: revision.map(|text| commit(text).unwrap()),
            generation,
        };
        let verdict = Verdict::of(&tf, &wanted);
        assert_eq!(verdict != Verdict::NotYet, reached, "{verdict:?}");
    }

    #[test]
    fn wait_tolerates_initial_stall_for_one_interval() {
        let tf = with_condition("Stalled", "True", 2);
        let stalled = || Verdict::Stalled("why".to_owned());
        let mut patience = Patience::default();
        patience.seen(stalled(), Some(&tf)).unwrap();
        patience.seen(stalled(), Some(&tf)).unwrap();
        patience.check().unwrap();
        // After a verdict other than `Stalled`, a stalled resource fails the wait at once.
        patience.seen(Verdict::NotYet, Some(&tf)).unwrap();
        assert!(patience.seen(stalled(), Some(&tf)).is_err());

        let mut patience = Patience {
            stalled: Some((Instant::now(), "why".to_owned())),
            has_begun: true,
        };
        assert!(patience.check().is_err());
        // With --revision or --generation (`None`), the wait fails at once if the resource is stalled.
        assert!(Patience::default().seen(stalled(), None).is_err());
    }

    #[test]
    fn progress_line_has_state_reason_run_and_message() {
        let mut tf = with_condition("Ready", "False", 2);
        tf.status.as_mut().unwrap().message = "why:\n  because\n".to_owned();
        assert_eq!(describe(&tf), "Failed  R  run 3  why: because");
        tf.status = None;
        let wanted = "Pending  -  no run yet  not reconciled by the operator yet";
        assert_eq!(describe(&tf), wanted);
    }
}
