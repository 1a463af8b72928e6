//! Publication of the text of a plan in a Secret, for review.

use std::time::Duration;

use alustan_api::names::plan_key::{ID, TEXT};
use alustan_state::retry::{Patience, pause_between_tries};
use alustan_state::secrets::{Changes, Secrets, StoreError};

use crate::failure::cut_to_bytes;

/// Maximum size of the text of a plan, in bytes. Kubernetes limits a Secret to 1 MiB.
const MAX_BYTES: usize = 512 * 1024;
/// Maximum duration of the retries of writing the Secret.
const PATIENCE: Duration = Duration::from_secs(20);

/// Writes the text of plan `id` to the Secret `name`. Replaces the text of the previous plan.
pub async fn publish(
    secrets: &dyn Secrets,
    name: &str,
    id: &str,
    text: &str,
) -> Result<(), StoreError> {
    let (patience, mut pauses) = (Patience::lasting(PATIENCE), pause_between_tries());
    let text = shortened(text).into_bytes();
    loop {
        let changes = Changes::from([
            (TEXT.to_owned(), Some(text.clone())),
            (ID.to_owned(), Some(id.as_bytes().to_vec())),
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

/// Returns `text`. If it exceeds [`MAX_BYTES`] bytes, returns its beginning and a note about the truncation.
fn shortened(text: &str) -> String {
    if text.len() <= MAX_BYTES {
        return text.to_owned();
    }
    let kept = cut_to_bytes(text, MAX_BYTES);
    let (size, kib) = (text.len(), MAX_BYTES / 1024);
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
        publish(&secrets, "web-plan", "0123", "new").await.unwrap();
        assert_eq!(text_of(&secrets), "new");
    }

    #[tokio::test]
    async fn long_plan_text_ends_with_a_truncation_notice() {
        let secrets = FakeSecrets::new();
        secrets.put("web-plan", []);
        let long = "é".repeat(MAX_BYTES);
        publish(&secrets, "web-plan", "0123", &long).await.unwrap();
        let text = text_of(&secrets);
        assert!(text.len() < MAX_BYTES + 100 && text.starts_with("éé"));
        let end = "é\n[Truncated to 512 KiB; the plan is 1048576 bytes.]\n";
        assert!(
            text.ends_with(end),
            "{}",
            text.get(MAX_BYTES - 10..).unwrap_or_default()
        );
    }

    #[tokio::test]
    async fn plan_text_is_not_published_without_its_secret() {
        let missing = publish(&FakeSecrets::new(), "web-plan", "0123", "new").await;
        assert!(matches!(missing, Err(StoreError::Missing(_))));
    }
}
