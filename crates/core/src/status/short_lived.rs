//! Status of a resource that waits for a query to the repository or the registry.

use alustan_api::{Reason, TerraformStatus};

use crate::status::events::condition;

/// Reasons of condition `Ready` while a query is pending.
const QUERIES: [Reason; 2] = [Reason::Fetching, Reason::ImageLookup];

/// Whether the change from `previous` to `next` only reports that a query is pending: `Ready` stays Unknown, and the generation is the
/// same.
pub fn only_reports_a_query(previous: &TerraformStatus, next: &TerraformStatus) -> bool {
    let (Some(previous_ready), Some(next_ready)) =
        (condition(previous, "Ready"), condition(next, "Ready"))
    else {
        return false;
    };
    previous.observed_generation == next.observed_generation
        && previous_ready.status == "Unknown"
        && next_ready.status == "Unknown"
        && QUERIES.iter().any(|query| next_ready.reason == *query)
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
    #[case::repository(status(1, "Unknown", "Fetching"), true)]
    #[case::registry(status(1, "Unknown", "ImageLookup"), true)]
    #[case::start(status(1, "Unknown", "Running"), false)]
    #[case::failure(status(1, "False", "Fetching"), false)]
    #[case::changed_spec(status(2, "Unknown", "Fetching"), false)]
    fn pending_query_alone_is_recognised(#[case] next: TerraformStatus, #[case] expected: bool) {
        let previous = status(1, "Unknown", "AwaitingProcessing");
        assert_eq!(only_reports_a_query(&previous, &next), expected);
        assert!(!only_reports_a_query(&status(1, "True", "Applied"), &next));
        assert!(!only_reports_a_query(&TerraformStatus::default(), &next));
    }
}
