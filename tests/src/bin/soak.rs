//! `make soak MINUTES=30` injects random faults into the dev cluster while users change 40 resources, and prints the table of
//! docs/reliability.md. `SEED` repeats the choices of an earlier campaign.

use std::sync::Arc;
use std::time::Duration;

use alustan_tests::{Scene, scene, soak};

#[tokio::main]
async fn main() {
    let number = |name: &str| {
        let value = std::env::var(name).ok().filter(|value| !value.is_empty())?;
        Some(
            value
                .parse::<u64>()
                .unwrap_or_else(|error| panic!("{name}: {error}")),
        )
    };
    let length = Duration::from_mins(number("MINUTES").unwrap_or(30));
    let seed = number("SEED").unwrap_or_else(|| fastrand::u64(..));
    let campaign = async |scene: Arc<Scene>| Box::pin(soak(scene, length, seed)).await;
    scene("soak", campaign).await;
}
