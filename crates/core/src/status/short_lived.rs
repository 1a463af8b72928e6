//! Status that another one is likely to replace within a second.

use alustan_api::{Reason, TerraformStatus};

use crate::status::events::condition;

/// Reasons of condition `Ready` of a new resource whose first run has not started, and of a resource that waits for a query to the repository or
/// the registry.
const REASONS: [Reason; 3] = [
    Reason::AwaitingProcessing,
    Reason::Fetching,
    Reason::ImageLookup,
];

/// Whether the change from `previous` to `next` may be short-lived. True for a new resource that awaits processing, for a pending query, and for
/// the progress of a run from plan to apply: `Ready` stays Unknown, and the generation is the same. False for each change that causes an event.
pub fn is_short_lived(previous: Option<&TerraformStatus>, next: &TerraformStatus) -> bool {
    let Some(ready) = condition(next, "Ready").filter(|ready| ready.status == "Unknown") else {
        return false;
    };
    let is_passing = REASONS.iter().any(|reason| ready.reason == *reason);
    let Some((previous, ready_before)) =
        previous.and_then(|previous| Some((previous, condition(previous, "Ready")?)))
    else {
        return is_passing;
    };
    let is_progress = ready.reason == ready_before.reason && ready.reason == Reason::Running;
    previous.observed_generation == next.observed_generation
        && ready_before.status == "Unknown"
        && (is_passing || is_progress)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn status(generation: i64, ready: &str, reason: &str) -> TerraformStatus {
        let ready = json!({
            "type": "Ready", "status": ready, "reason": reason, "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        });
        let status = json!({"observedGeneration": generation, "conditions": [ready]});
        serde_json::from_value(status).unwrap()
    }

    #[rstest]
    #[case::repository(status(1, "Unknown", "Fetching"), true, true)]
    #[case::registry(status(1, "Unknown", "ImageLookup"), true, true)]
    #[case::new(status(1, "Unknown", "AwaitingProcessing"), true, true)]
    #[case::start(status(1, "Unknown", "Running"), false, false)]
    #[case::failure(status(1, "False", "Fetching"), false, false)]
    #[case::changed_spec(status(2, "Unknown", "Fetching"), false, true)]
    fn short_lived_status_is_recognised(
        #[case] next: TerraformStatus,
        #[case] expected: bool,
        #[case] expected_first: bool,
    ) {
        let previous = status(1, "Unknown", "AwaitingProcessing");
        assert_eq!(is_short_lived(Some(&previous), &next), expected);
        assert!(!is_short_lived(Some(&status(1, "True", "Applied")), &next));
        assert_eq!(is_short_lived(None, &next), expected_first);
        let empty = TerraformStatus::default();
        assert_eq!(is_short_lived(Some(&empty), &next), expected_first);
    }

    #[test]
    fn progress_of_a_run_may_be_short_lived() {
        let running = status(1, "Unknown", "Running");
        assert!(is_short_lived(Some(&running), &running));
        let building = status(1, "Unknown", "Building");
        assert!(!is_short_lived(Some(&building), &running));
        assert!(!is_short_lived(Some(&running), &building));
    }
}
