//! Text of the plan in the output of a run.

use alustan_api::MAX_PLAN_BYTES;

use crate::failure::without_escapes;

/// Reserve for the note about the part of the plan that is not kept, in bytes.
const NOTE: usize = 80;

/// Maximum length of a line, in bytes. A longer line is split.
const MAX_LINE: usize = 64 * 1024;

/// Part of the line before the actions of a plan.
const ACTIONS: &str = " will perform the following actions";

/// Line before the changed outputs of a plan; the first line of a plan without actions.
const OUTPUTS: &str = "Changes to Outputs:";

/// Collects the text of the last plan from the output of a run: the lines from the list of actions, or of changed outputs, to the line after
/// the plan. Keeps the beginning of the plan, at most [`MAX_PLAN_BYTES`]: deletions and other changes in the order of the engine.
#[derive(Default)]
pub(crate) struct PlanText {
    /// Beginning of a line whose end was not printed yet.
    line: Vec<u8>,
    text: String,
    /// Number of bytes of the plan that are not in `text`.
    omitted: usize,
    /// Whether the last line belongs to a plan.
    is_open: bool,
}

impl PlanText {
    /// Adds output of the run.
    pub(crate) fn push(&mut self, clean: &[u8]) {
        for part in clean.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(part);
            if part.ends_with(b"\n") || self.line.len() >= MAX_LINE {
                let line = std::mem::take(&mut self.line);
                self.add_line(&without_escapes(&String::from_utf8_lossy(&line)));
            }
        }
    }

    fn add_line(&mut self, line: &str) {
        if line.contains(ACTIONS) || !self.is_open && line.trim_end() == OUTPUTS {
            self.text.clear();
            (self.omitted, self.is_open) = (0, true);
        } else if line.starts_with("────") {
            self.is_open = false;
        }
        if !self.is_open {
            return;
        }
        let has_space = self.text.len() + line.len() <= MAX_PLAN_BYTES - NOTE;
        if has_space && self.omitted == 0 {
            self.text.push_str(line);
        } else {
            self.omitted += line.len();
        }
    }

    /// Returns the text of the last plan, with a note about the part that is not kept. `None` without a plan.
    pub(crate) fn excerpt(&self) -> Option<String> {
        let text = self.text.trim_end();
        let note = match self.omitted {
            0 => String::new(),
            omitted => format!("\n[{omitted} more bytes of the plan are not stored]"),
        };
        (!text.is_empty()).then(|| format!("{text}{note}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str = "a: Refreshing state...\n";
    const START: &str = "Terraform will perform the following actions:\n";
    const AFTER: &str = "\n─────────\n\nSaved the plan to: plan\n";

    fn excerpt(parts: &[&str]) -> Option<String> {
        let mut plan = PlanText::default();
        for part in parts {
            plan.push(part.as_bytes());
        }
        plan.excerpt()
    }

    #[test]
    fn text_begins_with_the_actions_and_ends_before_the_note_of_the_engine() {
        let printed = excerpt(&[
            BEFORE,
            "Terraform will \x1b[1mperform",
            " the following actions:\n",
            "+ a\n",
            AFTER,
        ]);
        assert_eq!(
            printed.as_deref(),
            Some("Terraform will perform the following actions:\n+ a")
        );
        assert_eq!(excerpt(&[BEFORE]), None);
    }

    #[test]
    fn last_plan_of_a_run_is_kept() {
        let printed = excerpt(&[START, "+ a\n", AFTER, START, "- b\n", AFTER]).unwrap();
        assert!(printed.ends_with("\n- b") && !printed.contains("+ a"));
        let both = excerpt(&[
            START,
            "+ a\n",
            "Changes to Outputs:\n",
            "  + o = 1\n",
            AFTER,
        ]);
        assert!(both.is_some_and(|text| text.starts_with(START) && text.ends_with("o = 1")));
        let outputs = excerpt(&["Changes to Outputs:\n", "  + o = 1\n"]);
        assert_eq!(outputs.as_deref(), Some("Changes to Outputs:\n  + o = 1"));
    }

    #[test]
    fn beginning_of_a_large_plan_is_kept_with_the_size_of_the_rest() {
        let lines = format!("{}\n", "x".repeat(99)).repeat(1_000);
        let printed = excerpt(&[START, &lines, "end\n"]).unwrap();
        assert!(printed.starts_with(START) && printed.len() <= MAX_PLAN_BYTES);
        let kept = printed.lines().filter(|line| line.starts_with('x')).count();
        let omitted = (1_000 - kept) * 100 + "end\n".len();
        assert!(printed.ends_with(&format!(
            "\n[{omitted} more bytes of the plan are not stored]"
        )));
    }
}
