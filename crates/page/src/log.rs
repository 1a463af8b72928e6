//! The log of a run: from its pod, from byte 0, while the pod exists; then the parts in the record of the run.

use std::time::Duration;

use alustan_api::{ObjectKey, RunLog, TerraformRun};
use alustan_core::objects::run_job::ENGINE_CONTAINER;
use futures::{AsyncRead, AsyncReadExt as _};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::api::LogParams;
use kube::{Api, ResourceExt as _};
use tokio::time::timeout;

use crate::access::Viewer;
use crate::error::PageError;
use crate::kube_call::call;
use crate::objects;

/// Maximum size of one event with lines of a log, in bytes.
const PART_BYTES: usize = 48 * 1024;

/// Maximum length of a line, in bytes. A longer line is shown as several lines.
const MAX_LINE_BYTES: usize = 64 * 1024;

/// Time in which further lines are added to an event.
const PART_TIME: Duration = Duration::from_millis(30);

/// Maximum length of the timestamp at the beginning of a line.
const MAX_TIMESTAMP_BYTES: usize = 40;

/// Source of the log of a run.
pub(crate) enum LogSource {
    /// The pod has started.
    Pod(Box<PodLog>),
    /// The pod has not started, for this reason.
    NotStarted(String),
    /// The log of the pod cannot be read; the record contains parts of the log.
    Stored(RunLog),
    /// No log, for this reason.
    Missing(String),
}

/// Log of the engine's container in a pod.
pub(crate) struct PodLog {
    api: Api<Pod>,
    pod: String,
    /// Whether the container runs: its log may grow.
    pub(crate) is_running: bool,
}

/// Returns the source of the log of run `number` of `key`. `run`: the record of the run.
///
/// # Errors
/// If the API server does not answer.
pub(crate) async fn find(
    viewer: &Viewer,
    key: &ObjectKey,
    number: i64,
    run: Option<&TerraformRun>,
) -> Result<LogSource, PageError> {
    let stored = run
        .and_then(|run| run.status.as_ref())
        .map(|status| &status.log)
        .filter(|log| !log.head.is_empty());
    let reason = match objects::pod(viewer, key, number).await {
        Ok(Some((api, pod))) => match (container(&pod), stored) {
            (Container::Terminated, _) => {
                return Ok(LogSource::Pod(PodLog::new(api, &pod, false)));
            }
            // The record is written at the end of the run: the status of the pod is outdated, for example because its node is lost.
            (_, Some(log)) => return Ok(LogSource::Stored(log.clone())),
            (Container::Running, None) => {
                return Ok(LogSource::Pod(PodLog::new(api, &pod, true)));
            }
            (Container::Waiting(reason), None) => return Ok(LogSource::NotStarted(reason)),
            (Container::NeverStarted, None) => {
                "the pod failed before its container started".to_owned()
            }
        },
        Ok(None) => "the pod of the run no longer exists".to_owned(),
        Err(PageError::Forbidden(reason)) => reason,
        Err(error) => return Err(error),
    };
    Ok(match stored {
        Some(log) => LogSource::Stored(log.clone()),
        None => LogSource::Missing(format!(
            "no log: {reason}, and no record of the run contains its log"
        )),
    })
}

/// State of the engine's container.
#[derive(Debug, PartialEq, Eq)]
enum Container {
    Running,
    Terminated,
    /// The container has not started, for this reason.
    Waiting(String),
    /// The pod ended without a start of the container.
    NeverStarted,
}

fn container(pod: &Pod) -> Container {
    let status = pod.status.as_ref();
    let phase = status.and_then(|status| status.phase.as_deref());
    let containers = status.and_then(|status| status.container_statuses.as_ref());
    let state = containers
        .into_iter()
        .flatten()
        .find(|container| container.name == ENGINE_CONTAINER)
        .and_then(|container| container.state.as_ref());
    if state.is_some_and(|state| state.terminated.is_some()) {
        return Container::Terminated;
    }
    if matches!(phase, Some("Failed" | "Succeeded")) {
        return Container::NeverStarted;
    }
    if state.is_some_and(|state| state.running.is_some()) {
        return Container::Running;
    }
    let reason = state.and_then(|state| state.waiting.as_ref()?.reason.clone());
    let scheduled = status.and_then(|status| status.conditions.as_ref());
    let unscheduled = scheduled
        .into_iter()
        .flatten()
        .find(|condition| condition.type_ == "PodScheduled" && condition.status == "False")
        .map(|condition| {
            let reason = condition.reason.as_deref().unwrap_or_default();
            let message = condition.message.as_deref().unwrap_or_default();
            format!("{reason}: {message}")
        });
    let reason = reason.or(unscheduled);
    Container::Waiting(reason.unwrap_or_else(|| phase.unwrap_or("Pending").to_owned()))
}

impl PodLog {
    fn new(api: Api<Pod>, pod: &Pod, is_running: bool) -> Box<Self> {
        Box::new(Self {
            api,
            pod: pod.name_any(),
            is_running,
        })
    }

    /// Opens the current log as bytes, without timestamps.
    pub(crate) async fn bytes(&self) -> Result<impl AsyncRead + Send + use<>, PageError> {
        self.open(LogParams::default()).await
    }

    /// Opens the log after `position`, or from byte 0.
    pub(crate) async fn lines(
        &self,
        position: Option<&Position>,
    ) -> Result<Lines<impl AsyncRead + Send + use<>>, PageError> {
        let parameters = LogParams {
            follow: true,
            timestamps: true,
            since_time: position.and_then(Position::second),
            ..LogParams::default()
        };
        let log = Box::pin(self.open(parameters).await?);
        Ok(Lines::new(log, position.cloned()))
    }

    async fn open(
        &self,
        parameters: LogParams,
    ) -> Result<impl AsyncRead + Send + use<>, PageError> {
        let parameters = LogParams {
            container: Some(ENGINE_CONTAINER.to_owned()),
            ..parameters
        };
        let action = format!("read the log of pod {}", self.pod);
        call(&action, self.api.log_stream(&self.pod, &parameters)).await
    }
}

/// Position in a log: the end of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    /// Timestamp of the line, as the kubelet prints it.
    at: Timestamp,
    /// Number of lines with this timestamp up to the position.
    lines: u32,
}

impl Position {
    /// Parses the id of an event: `TIMESTAMP/LINES`.
    pub(crate) fn parse(id: &str) -> Option<Self> {
        let (at, lines) = id.split_once('/')?;
        Some(Self {
            at: at.parse().ok()?,
            lines: lines.parse().ok()?,
        })
    }

    /// Returns the second of the position: the API server accepts no fractions, and the client would round up.
    fn second(&self) -> Option<Timestamp> {
        Timestamp::from_second(self.at.as_second()).ok()
    }
}

impl std::fmt::Display for Position {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.at, self.lines)
    }
}

/// Lines of a log with timestamps, in parts of at most [`PART_BYTES`].
pub(crate) struct Lines<R> {
    log: R,
    /// Bytes after the last complete line.
    rest: Vec<u8>,
    /// Whether `rest` continues a line whose beginning was returned.
    continues: bool,
    /// End of the last returned line.
    position: Option<Position>,
    /// Position at which the client resumes. The kubelet selects by seconds, so that lines before it are repeated.
    resume: Option<Resume>,
}

/// Lines to skip after a client resumed.
struct Resume {
    from: Position,
    /// Number of skipped lines with the timestamp of `from`.
    skipped: u32,
}

/// Consecutive lines of a log.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// Text without the last newline.
    pub(crate) text: String,
    /// End of the part.
    pub(crate) position: Option<Position>,
}

/// Text in place of lines that the kubelet no longer has.
const GAP: &str = "[a part of the log is missing]";

impl<R: AsyncRead + Unpin> Lines<R> {
    fn new(log: R, position: Option<Position>) -> Self {
        let resume = position.clone().map(|from| Resume { from, skipped: 0 });
        Self {
            log,
            rest: Vec::new(),
            continues: false,
            position,
            resume,
        }
    }

    /// Returns the next lines. `None` at the end of the log.
    ///
    /// # Errors
    /// If the connection to the API server fails.
    pub(crate) async fn next(&mut self) -> std::io::Result<Option<Part>> {
        let mut text = String::new();
        let mut buffer = vec![0; PART_BYTES];
        let mut is_first = true;
        loop {
            let read = if is_first {
                self.log.read(&mut buffer).await?
            } else {
                match timeout(PART_TIME, self.log.read(&mut buffer)).await {
                    Ok(read) => read?,
                    Err(_) => break,
                }
            };
            let bytes = buffer.get(..read).unwrap_or_default();
            if bytes.is_empty() {
                let rest = std::mem::take(&mut self.rest);
                if !rest.is_empty() {
                    self.add(&rest, &mut text);
                }
                if text.is_empty() {
                    return Ok(None);
                }
                break;
            }
            self.push(bytes, &mut text);
            is_first = is_first && text.is_empty();
            if text.len() >= PART_BYTES {
                break;
            }
        }
        text.pop();
        Ok(Some(Part {
            text,
            position: self.position.clone(),
        }))
    }

    /// Adds the complete lines in `bytes` to `text`.
    fn push(&mut self, mut bytes: &[u8], text: &mut String) {
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            let (line, after) = bytes.split_at(end);
            self.rest.extend_from_slice(line);
            let line = std::mem::take(&mut self.rest);
            self.add(&line, text);
            self.continues = false;
            bytes = after.get(1..).unwrap_or_default();
        }
        self.rest.extend_from_slice(bytes);
        if self.rest.len() > MAX_LINE_BYTES {
            let line = std::mem::take(&mut self.rest);
            self.add(&line, text);
            self.continues = true;
        }
    }

    /// Adds one line with its timestamp to `text`.
    fn add(&mut self, line: &[u8], text: &mut String) {
        let line = String::from_utf8_lossy(line);
        let stamped = line
            .split_once(' ')
            .filter(|(at, _)| !self.continues && at.len() <= MAX_TIMESTAMP_BYTES)
            .and_then(|(at, line)| Some((at.parse::<Timestamp>().ok()?, line)));
        let Some((at, line)) = stamped else {
            if self.resume.is_none() {
                push_line(text, &line);
            }
            return;
        };
        if self.skips(at, text) {
            return;
        }
        let lines = match &self.position {
            Some(position) if position.at == at => position.lines.saturating_add(1),
            _ => 1,
        };
        self.position = Some(Position { at, lines });
        push_line(text, line);
    }

    /// Whether the client has the line with timestamp `at` already. Adds [`GAP`] to `text` if the line at which the client resumes is missing.
    fn skips(&mut self, at: Timestamp, text: &mut String) -> bool {
        let Some(resume) = &mut self.resume else {
            return false;
        };
        if at < resume.from.at {
            return true;
        }
        if at == resume.from.at && resume.skipped < resume.from.lines {
            resume.skipped += 1;
            return true;
        }
        if resume.skipped == 0 {
            push_line(text, GAP);
        }
        self.resume = None;
        false
    }
}

fn push_line(text: &mut String, line: &str) {
    text.push_str(line.trim_end_matches('\r'));
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::{Value, json};

    async fn read(log: &str, position: Option<&str>) -> Vec<Part> {
        let position = position.map(|position| Position::parse(position).unwrap());
        let mut lines = Lines::new(log.as_bytes(), position);
        let mut parts = Vec::new();
        while let Some(part) = lines.next().await.unwrap() {
            parts.push(part);
        }
        parts
    }

    fn text(parts: &[Part]) -> String {
        let texts: Vec<&str> = parts.iter().map(|part| part.text.as_str()).collect();
        texts.join("\n")
    }

    const LOG: &str = "2026-01-01T00:00:00.1Z a\n2026-01-01T00:00:00.2Z b\n2026-01-01T00:00:00.2Z c\n2026-01-01T00:00:00.3Z d\n";

    #[rstest]
    #[case::from_the_beginning(None, "a\nb\nc\nd")]
    #[case::after_a_line(Some("2026-01-01T00:00:00.1Z/1"), "b\nc\nd")]
    #[case::between_lines_of_one_time(Some("2026-01-01T00:00:00.2Z/1"), "c\nd")]
    #[case::at_the_end(Some("2026-01-01T00:00:00.3Z/1"), "")]
    #[case::after_a_removed_line(
        Some("2026-01-01T00:00:00.15Z/1"),
        "[a part of the log is missing]\nb\nc\nd"
    )]
    #[tokio::test]
    async fn log_resumes_after_the_last_line_of_client(
        #[case] position: Option<&str>,
        #[case] wanted: &str,
    ) {
        assert_eq!(text(&read(LOG, position).await), wanted);
    }

    #[tokio::test]
    async fn position_of_a_part_resumes_after_it() {
        let parts = read(LOG, None).await;
        let end = parts.last().unwrap().position.as_ref().unwrap().to_string();
        assert_eq!(end, "2026-01-01T00:00:00.3Z/1");
        assert!(read(LOG, Some(&end)).await.is_empty());
    }

    #[tokio::test]
    async fn line_of_a_mebibyte_is_split_and_complete() {
        let line = "x".repeat(1 << 20);
        let log = format!("2026-01-01T00:00:00Z {line}\n2026-01-01T00:00:01Z end\n");
        let parts = read(&log, None).await;
        assert!(
            parts
                .iter()
                .all(|part| part.text.len() <= MAX_LINE_BYTES + 2 * PART_BYTES)
        );
        let text = text(&parts);
        assert_eq!(text.matches('x').count(), 1 << 20);
        assert!(text.ends_with("\nend"), "{}", text.len());
    }

    #[tokio::test]
    async fn invalid_utf8_and_missing_timestamps_stay_text() {
        let mut lines = Lines::new(&b"no time\n2026-01-01T00:00:00Z \xff\xfe"[..], None);
        let part = lines.next().await.unwrap().unwrap();
        assert_eq!(part.text, "no time\n\u{fffd}\u{fffd}");
    }

    #[rstest]
    #[case::running(json!({"phase": "Running", "containerStatuses": [{"name": ENGINE_CONTAINER, "state": {"running": {}}}]}), Container::Running)]
    #[case::ended(json!({"phase": "Failed", "containerStatuses": [{"name": ENGINE_CONTAINER, "state": {"terminated": {"exitCode": 1}}}]}), Container::Terminated)]
    #[case::pulling(json!({"phase": "Pending", "containerStatuses": [{"name": ENGINE_CONTAINER, "state": {"waiting": {"reason": "ImagePullBackOff"}}}]}), Container::Waiting("ImagePullBackOff".to_owned()))]
    #[case::scheduled(json!({"phase": "Pending"}), Container::Waiting("Pending".to_owned()))]
    #[case::evicted(json!({"phase": "Failed"}), Container::NeverStarted)]
    fn state_of_the_container_decides_about_the_log(
        #[case] status: Value,
        #[case] wanted: Container,
    ) {
        let containers = status.get("containerStatuses").and_then(Value::as_array);
        let mut status = status.clone();
        for index in 0..containers.map_or(0, Vec::len) {
            let container = &mut status["containerStatuses"][index];
            for (name, value) in [
                ("image", json!("")),
                ("imageID", json!("")),
                ("ready", json!(false)),
                ("restartCount", json!(0)),
            ] {
                container[name] = value;
            }
        }
        let pod: Pod = serde_json::from_value(json!({"metadata": {}, "status": status})).unwrap();
        assert_eq!(container(&pod), wanted);
    }

    #[test]
    fn forged_positions_are_refused() {
        for id in ["", "a/1", "2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z/-1"] {
            assert_eq!(Position::parse(id), None, "{id}");
        }
    }
}
