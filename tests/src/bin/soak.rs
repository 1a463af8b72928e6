//! `make soak MINUTES=30` injects random faults into the dev cluster while users change 40 resources, and prints the table of
//! docs/reliability.md. `SEED` repeats the choices of an earlier campaign.

use std::num::ParseIntError;
use std::sync::Arc;
use std::time::Duration;

use alustan_tests::{Scene, scene_of_program, soak};

#[tokio::main]
async fn main() -> Result<(), ParseIntError> {
    let length = Duration::from_mins(number("MINUTES")?.unwrap_or(30));
    let seed = number("SEED")?.unwrap_or_else(|| fastrand::u64(..));
    let campaign = async |scene: Arc<Scene>| Box::pin(soak(scene, length, seed)).await;
    scene_of_program("soak", campaign).await;
    Ok(())
}

/// Returns the number in a variable of the environment.
fn number(name: &str) -> Result<Option<u64>, ParseIntError> {
    let value = std::env::var(name).ok().filter(|value| !value.is_empty());
    value.map(|value| value.parse()).transpose()
}
