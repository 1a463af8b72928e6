//! `wait`: until a resource is ready, or says that it will not be.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use alustan_api::Terraform;
use alustan_api::conditions::Kind;
use alustan_core::references::Key;
use clap::Args;
use futures::StreamExt;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, watch_object};

use crate::cluster::Cluster;
use crate::condition::{holds, reason};
use crate::error::Error;
use crate::print;

/// How often the line on a terminal is written anew.
const TICK: Duration = Duration::from_secs(1);

/// Wait until a resource is ready, and show what goes on.
#[derive(Debug, Args)]
pub(crate) struct Wait {
    /// Name of the resource.
    name: String,
    /// For how long: 90s, 10m, 1h30m.
    #[arg(long, default_value = "10m", value_parser = duration)]
    timeout: Duration,
}

impl Wait {
    /// Waits.
    pub(crate) async fn run(&self, cluster: &Cluster) -> Result<(), Error> {
        let found = cluster.resource(&self.name).await?;
        let mut progress = Progress::new();
        progress.seen(&found)?;
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

    /// Watches the resource until it is ready or never will be.
    async fn watch(&self, cluster: &Cluster, progress: &mut Progress) -> Result<(), Error> {
        let seen = watch_object(cluster.api::<Terraform>(), &self.name).default_backoff();
        let mut seen = std::pin::pin!(seen);
        let mut tick = tokio::time::interval(TICK);
        loop {
            tokio::select! {
                _ = tick.tick() => progress.draw(),
                found = seen.next() => match found {
                    Some(Err(error)) => match forbidden(&error) {
                        Some(why) => {
                            let key = cluster.key(&self.name);
                            return Err(Error::Refused(format!("cannot watch {key}: {why}")));
                        }
                        // It is tried again, and not waited for longer than for everything else.
                        None => progress.trouble(&error),
                    },
                    Some(Ok(Some(tf))) => {
                        progress.seen(&tf)?;
                        match Verdict::of(&tf) {
                            Verdict::Ready => return Ok(()),
                            Verdict::Never(why) => return Err(Error::Refused(why)),
                            Verdict::NotYet => {}
                        }
                    }
                    Some(Ok(None)) | None => return Err(gone(&cluster.key(&self.name))),
                },
            }
        }
    }
}

/// What the API server says where we have no right to watch.
fn forbidden(error: &watcher::Error) -> Option<&str> {
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

fn gone(key: &Key) -> Error {
    Error::Refused(format!("{key} was deleted while it was waited for"))
}

/// A duration as Kubernetes writes it.
fn duration(text: &str) -> Result<Duration, String> {
    let parsed: kube::core::Duration = text
        .parse()
        .map_err(|error| format!("{error}; for example 90s, 10m, 1h30m"))?;
    if parsed.is_negative() {
        return Err("it is negative".to_owned());
    }
    Ok(parsed.into())
}

/// What a resource says about its present spec.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// It is applied.
    Ready,
    /// Nothing more happens, and why.
    Never(String),
    /// Something goes on.
    NotYet,
}

impl Verdict {
    fn of(tf: &Terraform) -> Self {
        if tf.metadata.deletion_timestamp.is_some() {
            Self::Never(format!("{} is being deleted: {}", Key::of(tf), message(tf)))
        } else if holds(tf, Kind::Ready) {
            Self::Ready
        } else if holds(tf, Kind::Stalled) {
            Self::Never(format!("{} is stalled: {}", Key::of(tf), message(tf)))
        } else {
            Self::NotYet
        }
    }
}

fn message(tf: &Terraform) -> &str {
    let status = tf.status.as_ref();
    status.map_or("the operator has not looked at it yet", |it| &it.message)
}

/// What goes on, in a line: `Planning  Running  run 3  planning, run 3 (spec); …`.
fn describe(tf: &Terraform) -> String {
    let status = tf.status.as_ref();
    let state = status.map(|status| status.state).unwrap_or_default();
    let run = status.and_then(|status| status.run);
    let run = run.map_or_else(|| "no run yet".to_owned(), |run| format!("run {run}"));
    let reason = reason(tf).unwrap_or("-");
    let message: Vec<_> = message(tf).split_whitespace().collect();
    format!("{state:?}  {reason}  {run}  {}", message.join(" "))
}

/// What is shown while somebody waits: on a terminal one line that is written over, elsewhere one
/// line for each change.
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

    /// The resource as it is now.
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

    /// The line, cut by the terminal and not wrapped: what is written over must be one line.
    fn draw(&self) {
        if self.live {
            let (elapsed, last) = (self.elapsed(), &self.last);
            let mut out = std::io::stdout().lock();
            let _ = write!(out, "\r\x1b[2K\x1b[?7l{elapsed}  {last}\x1b[?7h");
            let _ = out.flush();
        }
    }

    fn trouble(&self, error: &watcher::Error) {
        self.end();
        eprintln!("the resource cannot be watched, trying again: {error}");
    }

    /// What follows stands on a line of its own.
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
    fn a_duration_is_written_as_in_kubernetes(#[case] text: &str, #[case] seconds: Option<u64>) {
        let wanted = seconds.map(Duration::from_secs);
        assert_eq!(duration(text).ok(), wanted);
    }

    /// A resource of generation 2.
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
    #[case::of_the_spec_before("Ready", "True", 1, Verdict::NotYet)]
    #[case("Ready", "False", 2, Verdict::NotYet)]
    #[case("Stalled", "True", 2, Verdict::Never("team/web is stalled: why".into()))]
    #[case::before_the_spec_was_mended("Stalled", "True", 1, Verdict::NotYet)]
    fn the_verdict_is_about_the_present_spec(
        #[case] kind: &str,
        #[case] status: &str,
        #[case] generation: i64,
        #[case] wanted: Verdict,
    ) {
        let tf = with_condition(kind, status, generation);
        assert_eq!(Verdict::of(&tf), wanted);
    }

    #[test]
    fn one_that_is_being_deleted_is_not_waited_for() {
        let mut tf = with_condition("Ready", "True", 2);
        tf.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        assert!(matches!(Verdict::of(&tf), Verdict::Never(_)));
    }

    #[test]
    fn a_line_tells_what_goes_on() {
        let mut tf = with_condition("Ready", "False", 2);
        tf.status.as_mut().unwrap().message = "why:\n  because\n".to_owned();
        assert_eq!(describe(&tf), "Failed  R  run 3  why: because");
        tf.status = None;
        let wanted = "Pending  -  no run yet  the operator has not looked at it yet";
        assert_eq!(describe(&tf), wanted);
    }
}
