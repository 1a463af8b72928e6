//! Beginning and tail of the output of a run. Logs are deleted with their pods, so the `TerraformRun` contains an excerpt of the log, and the
//! run report keeps the tails of the last failed runs, for the command `kubectl alustan logs`.

use parking_lot::Mutex;
use std::collections::VecDeque;
use std::io::Write;
use std::sync::Arc;

use alustan_api::run::key;
use alustan_api::{MAX_LOG_HEAD_BYTES, MAX_LOG_TAIL_BYTES, RunLog};
use alustan_state::secrets::{Changes, MAX_SECRET_BYTES, Snapshot};
use flate2::Compression;
use flate2::write::GzEncoder;

use crate::failure::without_escapes;
use crate::plan_text::PlanText;
use crate::record::RESERVE;

/// Maximum size of a tail, in bytes before compression.
pub const MAX_BYTES: usize = 64 * 1024;
/// Number of failed runs whose tails are kept.
const RUNS: usize = 3;

/// Beginning and tail of the output of a run. Cheap to clone.
#[derive(Clone, Default)]
pub struct LogTail(Arc<Mutex<Kept>>);

#[derive(Default)]
struct Kept {
    /// Size of the output, in bytes.
    size: usize,
    head: Vec<u8>,
    tail: VecDeque<u8>,
    plan: PlanText,
}

impl LogTail {
    /// Appends `clean`, output in which secret values are masked.
    pub fn push(&self, clean: &[u8]) {
        let mut kept = self.0.lock();
        kept.size = kept.size.saturating_add(clean.len());
        kept.plan.push(clean);
        let missing = MAX_LOG_HEAD_BYTES.saturating_sub(kept.head.len());
        kept.head.extend(clean.iter().take(missing));
        let tail = &mut kept.tail;
        tail.extend(clean.iter().skip(clean.len().saturating_sub(MAX_BYTES)));
        let excess = tail.len().saturating_sub(MAX_BYTES);
        tail.drain(..excess);
    }

    /// Returns the beginning and the end of the output, without colours.
    pub fn excerpt(&self) -> RunLog {
        let kept = self.0.lock();
        let rest = kept.size.saturating_sub(kept.head.len());
        let end = rest.min(MAX_LOG_TAIL_BYTES);
        let start = kept.tail.len().saturating_sub(end);
        let tail: Vec<u8> = kept.tail.iter().skip(start).copied().collect();
        let text = |bytes: &[u8]| without_escapes(&String::from_utf8_lossy(bytes));
        RunLog {
            head: text(&kept.head),
            tail: text(&tail),
            omitted_bytes: i64::try_from(rest - end).unwrap_or(i64::MAX),
        }
    }

    /// Returns the text of the last plan in the output, without colours.
    pub fn plan(&self) -> Option<String> {
        self.0.lock().plan.excerpt()
    }

    /// Returns the tail as gzip, without colours and from the start of a line; `None` without output.
    pub fn packed(&self) -> Option<Vec<u8>> {
        let mut kept = self.0.lock();
        let mut text = &*kept.tail.make_contiguous();
        if text.len() == MAX_BYTES {
            let line = text.iter().position(|byte| *byte == b'\n');
            text = line.and_then(|end| text.get(end + 1..)).unwrap_or(text);
        }
        let text = without_escapes(&String::from_utf8_lossy(text));
        let mut packed = GzEncoder::new(Vec::new(), Compression::best());
        packed.write_all(text.as_bytes()).ok()?;
        packed.finish().ok().filter(|_| !text.is_empty())
    }
}

/// Adds the log of run `number` to `changes`, and keeps only the last three logs. If the Secret of the run report has no space for the log,
/// removes all logs, to keep space for the other content.
pub fn keep(snapshot: &Snapshot, changes: &mut Changes, number: i64, packed: Vec<u8>) {
    let mut runs: Vec<i64> = snapshot
        .data
        .keys()
        .filter_map(|key| key::log_of(key))
        .collect();
    runs.sort_unstable();
    let old = runs.len().saturating_sub(RUNS - 1);
    changes.extend(runs.drain(..old).map(|run| (key::log(run), None)));
    changes.insert(key::log(number), Some(packed));
    if snapshot.size_with(changes) + RESERVE > MAX_SECRET_BYTES {
        changes.remove(&key::log(number));
        remove_all(snapshot, changes);
    }
}

/// Adds the removal of all logs to `changes`.
pub fn remove_all(snapshot: &Snapshot, changes: &mut Changes) {
    let logs = snapshot
        .data
        .keys()
        .filter(|key| key::log_of(key).is_some());
    changes.extend(logs.map(|key| (key.clone(), None)));
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use flate2::read::GzDecoder;

    use super::*;

    fn unpacked(packed: &[u8]) -> Vec<u8> {
        let mut text = Vec::new();
        GzDecoder::new(packed).read_to_end(&mut text).unwrap();
        text
    }

    #[test]
    fn end_of_the_run_output_is_kept() {
        let tail = LogTail::default();
        assert_eq!(tail.packed(), None);
        tail.push(b"first");
        tail.push(&vec![b'a'; MAX_BYTES - 4]);
        tail.push(b"last");
        let text = unpacked(&tail.packed().unwrap());
        assert_eq!(text.len(), MAX_BYTES);
        assert!(text.starts_with(b"aaaa") && text.ends_with(b"alast"));
        tail.push(&vec![b'b'; 2 * MAX_BYTES]);
        assert_eq!(unpacked(&tail.packed().unwrap()), vec![b'b'; MAX_BYTES]);
    }

    #[test]
    fn kept_log_starts_at_a_line_and_has_no_colours() {
        let tail = LogTail::default();
        tail.push(&vec![b'a'; MAX_BYTES]);
        tail.push("\u{1b}[31mé\u{1b}[0m\nlast".as_bytes());
        assert_eq!(unpacked(&tail.packed().unwrap()), b"last");
        let tail = LogTail::default();
        tail.push("\u{1b}[1m\u{1b}[31mError:\u{1b}[0m no\n".as_bytes());
        assert_eq!(unpacked(&tail.packed().unwrap()), b"Error: no\n");
    }

    #[test]
    fn excerpt_has_beginning_and_end_of_the_output() {
        let log = LogTail::default();
        log.push(b"\x1b[1mfirst\x1b[0m\n");
        let excerpt = log.excerpt();
        assert_eq!(
            (excerpt.head.as_str(), excerpt.tail.as_str()),
            ("first\n", "")
        );
        log.push(&vec![b'a'; MAX_BYTES]);
        log.push(b"\nlast");
        let excerpt = log.excerpt();
        assert!(excerpt.head.starts_with("first\na") && excerpt.tail.ends_with("a\nlast"));
        assert_eq!(excerpt.tail.len(), MAX_LOG_TAIL_BYTES);
        let size = 14 + MAX_BYTES + 5;
        let omitted = size - MAX_LOG_HEAD_BYTES - MAX_LOG_TAIL_BYTES;
        assert_eq!(excerpt.omitted_bytes, i64::try_from(omitted).unwrap());
    }

    fn snapshot(keys: &[(&str, usize)]) -> Snapshot {
        Snapshot {
            data: keys
                .iter()
                .map(|(key, size)| ((*key).to_owned(), vec![0; *size]))
                .collect(),
            ..Snapshot::default()
        }
    }

    #[test]
    fn the_logs_of_the_last_failed_runs_are_kept() {
        let secret = snapshot(&[("log-9", 1), ("log-10", 1), ("log-2", 1), ("record", 1)]);
        let mut changes = Changes::new();
        keep(&secret, &mut changes, 12, vec![1]);
        let wanted = [("log-12", Some(vec![1])), ("log-2", None)];
        assert_eq!(
            changes,
            wanted.map(|(key, value)| (key.to_owned(), value)).into()
        );
    }

    #[test]
    fn log_never_displaces_an_unsaved_state() {
        let secret = snapshot(&[(key::LEFTOVER, 700 * 1024), ("log-9", 60 * 1024)]);
        let mut changes = Changes::new();
        keep(&secret, &mut changes, 12, vec![1; 300 * 1024]);
        assert_eq!(changes, [("log-9".to_owned(), None)].into());
    }
}
