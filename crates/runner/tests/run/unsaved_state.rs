//! Tests of an unsaved state: where an apply keeps the state, and how the next run pushes it to the backend.

use std::path::PathBuf;

use alustan_api::report::{FailureClass, RunResult, UnsavedPlace};
use alustan_api::run::RunKind;
use serde_json::{Value, json};

use crate::world::{KEY, Ran, World};

const SEALED: &str = "cache/errored.tfstate.sealed";
const PUSHING: &str = "pushing the unsaved state of an earlier run";

/// Returns a state with one output.
fn state(serial: u64, lineage: &str, output: &str) -> String {
    json!({
        "version": 4, "terraform_version": "1.11.4", "serial": serial, "lineage": lineage,
        "outputs": {"x": {"value": output, "type": "string"}}, "resources": []
    })
    .to_string()
}

/// Test environment in which an apply leaves the unsaved state `lost`. A file at `place` blocks the folder of the `local` backend, so each push of
/// the state fails.
struct Unsaved {
    world: World,
    place: PathBuf,
}

impl Unsaved {
    fn new(lost: &str) -> Self {
        let mut world = World::with_local_backend("");
        let place = world.path("local.tfstate");
        let path = place.join("sub/x").display().to_string();
        world
            .inputs
            .backend
            .config
            .insert("path".into(), path.into());
        let file = world.path("lost.tfstate");
        std::fs::write(&file, lost).unwrap();
        world.inputs.scripts.apply = Some(format!(
            "cp {} errored.tfstate; touch {}; exit 1",
            file.display(),
            place.display()
        ));
        Self { world, place }
    }

    fn with_kept_cache(mut self) -> Self {
        self.world
            .vars
            .insert("ALUSTAN_CACHE_KEPT".into(), "true".into());
        self
    }

    /// Runs an apply that fails. Returns the failure message and the location of the unsaved state.
    fn fail(&mut self) -> (String, Option<UnsavedPlace>) {
        let ran = self.world.run(RunKind::Apply);
        let message = ran.expect_failure(FailureClass::Module, "ScriptFailed");
        (message.to_owned(), ran.expect(RunResult::Failed).unsaved)
    }

    /// Removes the file that blocks the backend, and runs a drift check.
    fn check_drift(&mut self) -> Ran {
        if self.place.is_file() {
            std::fs::remove_file(&self.place).unwrap();
        }
        self.world.inputs.scripts.apply = None;
        self.world.run(RunKind::Drift)
    }

    fn saved(&self) -> Value {
        let text = std::fs::read(self.place.join("sub/x")).unwrap();
        serde_json::from_slice(&text).unwrap()
    }
}

/// Returns text that does not compress to less than 700 KiB.
fn noise() -> String {
    let mut seed = 1_u64;
    let mut next = || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        format!("{seed:016x}")
    };
    (0..100_000).map(|_| next()).collect()
}

#[test]
fn unsaved_state_without_cache_volume_is_in_the_report() {
    let mut unsaved = Unsaved::new(&state(7, "lost", "of value"));
    let (message, place) = unsaved.fail();
    assert_eq!(place, Some(UnsavedPlace::Report));
    assert!(
        message.contains("it is kept in Secret web-report, and the next run pushes it"),
        "{message}"
    );
    assert!(!unsaved.world.path(SEALED).exists());
    let sealed = unsaved.world.unsaved_state().unwrap();
    assert!(!String::from_utf8_lossy(&sealed).contains("of value"));

    // The next push fails too. The run then executes no other step, and the unsaved state is kept.
    unsaved.world.inputs.scripts.init = Some("rm $place; terraform init; touch $place".into());
    let place = unsaved.place.display().to_string();
    unsaved
        .world
        .inputs
        .variables
        .insert("place".into(), json!(place));
    let ran = unsaved.world.run(RunKind::Drift);
    ran.expect_failure(FailureClass::Transient, "StateLocked");
    assert!(!ran.expect(RunResult::Failed).recovered);
    assert_eq!(unsaved.world.unsaved_state(), Some(sealed));
    unsaved.world.inputs.scripts.init = None;

    // Simulates a new pod: its cache is an empty scratch volume.
    std::fs::remove_dir_all(unsaved.world.path("cache")).unwrap();
    let ran = unsaved.check_drift();
    assert!(ran.stderr.contains(PUSHING), "{}", ran.logs());
    assert!(ran.report.as_ref().unwrap().recovered);
    assert_eq!(unsaved.saved()["outputs"]["x"]["value"], "of value");
    assert_eq!(unsaved.world.unsaved_state(), None);
    let ran = unsaved.check_drift();
    assert!(!ran.stderr.contains(PUSHING), "{}", ran.logs());
}

#[test]
fn pushed_state_is_removed_from_report_and_cache_volume() {
    let mut unsaved = Unsaved::new(&state(7, "lost", "of value")).with_kept_cache();
    let (message, place) = unsaved.fail();
    assert_eq!(place, Some(UnsavedPlace::Report));
    assert!(message.contains("kept in Secret web-report"), "{message}");
    assert!(unsaved.world.unsaved_state().is_some() && unsaved.world.path(SEALED).is_file());
    unsaved.check_drift();
    assert_eq!(unsaved.saved()["lineage"], "lost");
    assert!(unsaved.world.unsaved_state().is_none() && !unsaved.world.path(SEALED).exists());
}

#[test]
fn unsaved_state_too_large_for_the_report_is_in_the_cache() {
    let mut unsaved = Unsaved::new(&state(7, "lost", &noise())).with_kept_cache();
    let (message, place) = unsaved.fail();
    assert_eq!(place, Some(UnsavedPlace::CacheVolume));
    assert!(
        message.contains("it is kept on the cache volume, and the next run pushes it"),
        "{message}"
    );
    assert_eq!(unsaved.world.unsaved_state(), None);
    unsaved.check_drift();
    assert_eq!(unsaved.saved()["lineage"], "lost");
    assert!(!unsaved.world.path(SEALED).exists());
}

#[test]
fn unsaved_state_without_room_is_reported_as_lost() {
    let mut unsaved = Unsaved::new(&state(7, "lost", &noise()));
    let (message, place) = unsaved.fail();
    assert_eq!(place, None);
    for part in [
        "the state will be LOST with this pod: copy ",
        "Secret web-report: the compressed state of",
        "the pod has no cache volume of its own",
    ] {
        assert!(message.contains(part), "no {part:?} in {message}");
    }
    assert!(!message.contains("is kept"), "{message}");
    assert!(unsaved.world.unsaved_state().is_none() && !unsaved.world.path(SEALED).exists());
    let ran = unsaved.check_drift();
    assert!(!ran.stderr.contains(PUSHING), "{}", ran.logs());
}

#[test]
fn errored_state_that_can_be_pushed_is_not_kept() {
    let mut unsaved = Unsaved::new(&state(7, "lost", "x")).with_kept_cache();
    let script = unsaved.world.inputs.scripts.apply.take().unwrap();
    let script = script.replace("touch", "true");
    unsaved.world.inputs.scripts.apply = Some(script);
    let message = "scripts.apply failed with exit code 1".to_owned();
    assert_eq!(unsaved.fail(), (message, None));
    assert_eq!(unsaved.saved()["lineage"], "lost");
    assert!(unsaved.world.unsaved_state().is_none() && !unsaved.world.path(SEALED).exists());
}

#[test]
fn older_unsaved_state_is_renamed_and_not_pushed() {
    let old = state(7, "same", "old");
    let mut unsaved = Unsaved::new("").with_kept_cache();
    std::fs::create_dir_all(unsaved.place.join("sub")).unwrap();
    std::fs::write(unsaved.place.join("sub/x"), state(8, "same", "new")).unwrap();
    unsaved.world.keep_unsaved(&old);
    unsaved.check_drift();
    assert_eq!(unsaved.saved()["outputs"]["x"]["value"], "new");
    assert_eq!(unsaved.world.unsaved_state(), None);
    let aside = unsaved.world.path("cache/errored.tfstate.1.old");
    assert!(aside.is_file());
}

#[test]
fn older_unsaved_state_without_volume_stays_in_report() {
    let mut unsaved = Unsaved::new("");
    std::fs::create_dir_all(unsaved.place.join("sub")).unwrap();
    std::fs::write(unsaved.place.join("sub/x"), state(8, "same", "new")).unwrap();
    unsaved.world.keep_unsaved(&state(7, "same", "old"));
    let ran = unsaved.check_drift();
    assert!(
        ran.stderr
            .contains("the unsaved state is kept in Secret web-report"),
        "{}",
        ran.logs()
    );
    assert_eq!(unsaved.saved()["outputs"]["x"]["value"], "new");
    let sealed = unsaved.world.unsaved_state().unwrap();
    let kept = alustan_runner::state::unsaved::decrypt(&sealed, KEY).unwrap();
    assert_eq!(kept, state(7, "same", "old").into_bytes());
}

#[test]
fn unsaved_state_is_pushed_to_the_managed_backend() {
    let mut world = World::new("output \"x\" { value = \"first\" }\n");
    world.run(RunKind::Apply).expect(RunResult::Done);
    let lineage = world.pointer().current.unwrap().lineage.unwrap();
    world.keep_unsaved(&state(7, &lineage, "of value"));
    let ran = world.run(RunKind::Drift);
    ran.expect(RunResult::Changes);
    assert!(ran.stderr.contains(PUSHING), "{}", ran.logs());
    assert!(world.pointer().current.unwrap().serial >= Some(7));
    assert_eq!(world.unsaved_state(), None);
}
