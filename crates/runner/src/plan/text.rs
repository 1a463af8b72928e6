//! Publication of the text of a plan in a Secret, for review.

use std::time::Duration;

use alustan_api::names::plan_key::{ID, SPECULATIVE_RUN, SPECULATIVE_TEXT, TEXT};
use alustan_state::retry::{Patience, pause_between_tries};
use alustan_state::secrets::{Changes, Secrets, StoreError};

use crate::failure::cut_to_bytes;

/// Data keys of the text of a plan, and the maximum size of the text. Kubernetes limits the data of the Secret, which has both texts, to
/// 1 MiB.
pub struct TextEntry {
    text: &'static str,
    id: &'static str,
    max_bytes: usize,
}

/// Text of a plan that waits for approval, with the id of the plan.
pub const PENDING: TextEntry = TextEntry {
    text: TEXT,
    id: ID,
    max_bytes: 512 * 1024,
};

/// Text of a speculative plan, with the number of its run.
pub const SPECULATIVE: TextEntry = TextEntry {
    text: SPECULATIVE_TEXT,
    id: SPECULATIVE_RUN,
    max_bytes: 384 * 1024,
};

/// Maximum duration of the retries of writing the Secret.
const PATIENCE: Duration = Duration::from_secs(20);

/// Writes the text of plan `id` to the data keys `entry` of Secret `name`. Replaces the text of the previous plan.
pub async fn publish(
    secrets: &dyn Secrets,
    name: &str,
    entry: &TextEntry,
    id: &str,
    text: &str,
) -> Result<(), StoreError> {
    let (patience, mut pauses) = (Patience::lasting(PATIENCE), pause_between_tries());
    let text = shortened(text, entry.max_bytes).into_bytes();
    loop {
        let changes = Changes::from([
            (entry.text.to_owned(), Some(text.clone())),
            (entry.id.to_owned(), Some(id.as_bytes().to_vec())),
        ]);
        let written = match secrets.read(name).await {
            Ok(snapshot) => secrets.swap(name, &snapshot.version, changes).await,
            Err(error) => Err(error),
        };
        match written {
            Err(error) if may_pass(&error) && !patience.is_over() => {
                tokio::time::sleep(pauses.next().unwrap_or_default()).await;
            }
            other => return other.map(drop),
        }
    }
}

fn may_pass(error: &StoreError) -> bool {
    error.is_passing() || matches!(error, StoreError::Conflict(_))
}

/// Returns `text`. If it exceeds `max` bytes, returns its beginning and a note about the truncation.
fn shortened(text: &str, max: usize) -> String {
    if text.len() <= max {
        return text.to_owned();
    }
    let kept = cut_to_bytes(text, max);
    let (size, kib) = (text.len(), max / 1024);
    format!("{kept}\n[Truncated to {kib} KiB; the plan is {size} bytes.]\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use alustan_state::fake::{FakeSecrets, Fault};

    fn text_of(secrets: &FakeSecrets) -> String {
        let data = secrets.get("web-plan").unwrap().data;
        assert_eq!(data[ID], b"0123");
        String::from_utf8(data[TEXT].clone()).unwrap()
    }

    #[tokio::test]
    async fn new_plan_text_replaces_the_previous_one() {
        let secrets = FakeSecrets::new();
        secrets.put("web-plan", [(TEXT, b"old".to_vec())]);
        secrets.fail(0, Fault::Lost);
        secrets.fail(1, Fault::AnswerLost);
        publish(&secrets, "web-plan", &PENDING, "0123", "new")
            .await
            .unwrap();
        assert_eq!(text_of(&secrets), "new");
    }

    #[tokio::test]
    async fn long_plan_text_ends_with_a_truncation_notice() {
        let secrets = FakeSecrets::new();
        secrets.put("web-plan", []);
        let long = "é".repeat(PENDING.max_bytes);
        publish(&secrets, "web-plan", &PENDING, "0123", &long)
            .await
            .unwrap();
        let text = text_of(&secrets);
        assert!(text.len() < PENDING.max_bytes + 100 && text.starts_with("éé"));
        let end = "é\n[Truncated to 512 KiB; the plan is 1048576 bytes.]\n";
        assert!(
            text.ends_with(end),
            "{}",
            text.get(PENDING.max_bytes - 10..).unwrap_or_default()
        );
    }

    #[tokio::test]
    async fn long_texts_of_both_plans_fit_into_the_secret() {
        let secrets = FakeSecrets::new();
        secrets.put("web-plan", []);
        let long = "a".repeat(2 << 20);
        for entry in [&PENDING, &SPECULATIVE] {
            publish(&secrets, "web-plan", entry, "0123", &long)
                .await
                .unwrap();
        }
        let data = secrets.get("web-plan").unwrap().data;
        assert_eq!(data[SPECULATIVE_RUN], b"0123");
        assert_eq!(data.len(), 4);
        assert!(data.values().map(Vec::len).sum::<usize>() < 1 << 20);
    }

    #[tokio::test]
    async fn plan_text_is_not_published_without_its_secret() {
        let missing = publish(&FakeSecrets::new(), "web-plan", &PENDING, "0123", "new").await;
        assert!(matches!(missing, Err(StoreError::Missing(_))));
    }
}
