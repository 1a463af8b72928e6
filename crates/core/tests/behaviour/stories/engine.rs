//! `spec.engine`: the operator selects the engine of a resource from its catalogue once. Later changes of the catalogue do not change the
//! engine of the resource.

use alustan_api::report::FailureClass;
use alustan_api::{Engine, EngineName, Terraform, Wrapper, WrapperName};
use alustan_core::model::base_image::base_image;
use alustan_core::settings::{EngineImage, Settings};
use rstest::rstest;
use serde_json::{Value, json};

use crate::fixtures::{Edit as _, settings, terraform};
use crate::world::{PodEvent, Stage, World};

const CATALOGUE: [&str; 6] = [
    "terraform 1.11.4",
    "terraform 1.9.8",
    "opentofu 1.12.6",
    "opentofu 1.12.10",
    "opentofu 1.11.2",
    "opentofu 1.13.0-rc1",
];

fn image(engine: &str) -> EngineImage {
    let (name, version) = engine.split_once(' ').unwrap();
    EngineImage {
        engine: Engine {
            name: EngineName::parse(name).unwrap(),
            version: version.to_owned(),
        },
        wrapper: None,
        image: format!("registry.test/{name}:{version}"),
    }
}

fn with_catalogue() -> Settings {
    Settings {
        engines: CATALOGUE.map(image).to_vec(),
        ..settings()
    }
}

fn of(engine: Value) -> Terraform {
    terraform().with("/engine", engine)
}

fn world(engine: Value) -> World {
    let mut world = World::with(of(engine));
    world.settings = with_catalogue();
    world.settle();
    world
}

fn engine(world: &World) -> Option<String> {
    world.status().engine.map(|engine| engine.to_string())
}

#[rstest]
#[case::by_version(json!({"name": "opentofu", "version": "1.11.2"}), "opentofu 1.11.2")]
#[case::the_newest_of_a_series(json!({"name": "opentofu", "version": "1.12"}), "opentofu 1.12.10")]
#[case::the_newest(json!({"name": "opentofu"}), "opentofu 1.12.10")]
#[case::terraform_unless_named(json!({"version": "1.9"}), "terraform 1.9.8")]
#[case::prerelease_by_full_version(
    json!({"name": "opentofu", "version": "1.13.0-rc1"}), "opentofu 1.13.0-rc1")]
fn catalogue_resolves_requested_engine(#[case] requested: Value, #[case] wanted: &str) {
    let unresolved = base_image(&of(requested), &with_catalogue(), None)
        .unwrap()
        .unwrap_err();
    assert_eq!(unresolved.engine.unwrap().to_string(), wanted);
    assert_eq!(unresolved.reference, image(wanted).image);
}

/// Returns an image with an engine and Terragrunt `version`.
fn wrapped(engine: &str, version: &str) -> EngineImage {
    let image = image(engine);
    EngineImage {
        wrapper: Some(Wrapper {
            name: WrapperName::Terragrunt,
            version: version.to_owned(),
        }),
        image: format!("{}-terragrunt-{version}", image.image),
        ..image
    }
}

#[rstest]
#[case::the_newest(json!({"wrapper": "terragrunt"}), Ok("terraform 1.11.4 with terragrunt 1.0.10"))]
#[case::by_wrapper_version(
    json!({"wrapper": "terragrunt", "wrapperVersion": "1.0.2"}), Ok("terraform 1.11.4 with terragrunt 1.0.2"))]
#[case::by_both_versions(
    json!({"version": "1.9", "wrapper": "terragrunt", "wrapperVersion": "1.0"}), Ok("terraform 1.9.8 with terragrunt 1.0.2"))]
#[case::without_wrapper(json!({"version": "1.11"}), Ok("terraform 1.11.4"))]
#[case::another_engine(json!({"name": "opentofu", "wrapper": "terragrunt"}), Err("does not have opentofu with terragrunt;"))]
#[case::unknown_version(
    json!({"wrapper": "terragrunt", "wrapperVersion": "0.9"}), Err("available: terraform 1.11.4 with terragrunt 1.0.10"))]
fn catalogue_resolves_requested_wrapper(
    #[case] requested: Value,
    #[case] expected: Result<&str, &str>,
) {
    let mut settings = with_catalogue();
    settings.engines.extend([
        wrapped("terraform 1.11.4", "1.0.2"),
        wrapped("terraform 1.11.4", "1.0.10"),
        wrapped("terraform 1.9.8", "1.0.2"),
    ]);
    let selected = base_image(&of(requested), &settings, None);
    match (selected, expected) {
        (Ok(image), Ok(expected)) => {
            let reference = image.unwrap_err().reference;
            let mut entries = settings.engines.iter();
            let entry = entries.find(|entry| entry.image == reference).unwrap();
            assert_eq!(entry.to_string(), expected);
        }
        (Err(failure), Err(part)) => {
            assert!(failure.message.contains(part), "{}", failure.message);
        }
        (selected, expected) => panic!("{selected:?}, not {expected:?}"),
    }
}

#[test]
fn wrapper_alone_selects_the_engine_that_the_catalogue_has() {
    let tf = of(json!({"wrapper": "terragrunt"}));
    let mut settings = with_catalogue();
    settings.engines.push(wrapped("opentofu 1.12.6", "1.0.2"));
    let image = base_image(&tf, &settings, None).unwrap().unwrap_err();
    assert_eq!(
        image.requested.as_deref(),
        Some("an engine with terragrunt")
    );
    assert_eq!(image.engine.unwrap().to_string(), "opentofu 1.12.6");
}

#[test]
fn change_of_wrapper_builds_and_runs_again() {
    let mut world = world(json!({"version": "1.11.4"}));
    assert!(world.is_ready(), "{:?}", world.status());
    world
        .settings
        .engines
        .push(wrapped("terraform 1.11.4", "1.0.2"));
    world
        .edit(|tf| tf.with("/engine/wrapper", "terragrunt"))
        .settle();
    assert!(world.is_ready(), "{:?}", world.status());
    assert_eq!((world.builds.len(), world.run_number()), (2, 2));
    let base = world.status().image.unwrap().base;
    assert!(base.contains("terragrunt"), "{base}");
}

#[test]
fn wrapper_with_scripts_stalls() {
    let tf =
        of(json!({"wrapper": "terragrunt"})).with("/scripts", json!({"init": {"inline": "true"}}));
    let mut world = World::with(tf);
    world.settings = with_catalogue();
    world.settle();
    let found = (world.reason(), world.is_stalled(), world.jobs.len());
    assert_eq!(found, ("WrapperUnsupported".to_owned(), true, 0));
}

#[test]
fn unknown_version_stalls_and_lists_available_engines() {
    let world = world(json!({"name": "opentofu", "version": "1.10"}));
    assert_eq!(
        (world.reason().as_str(), world.is_stalled()),
        ("EngineUnknown", true)
    );
    let message = world.status().message;
    let available = "opentofu 1.10; available: terraform 1.11.4, terraform 1.9.8, \
                 opentofu 1.13.0-rc1, opentofu 1.12.10, opentofu 1.12.6, opentofu 1.11.2";
    assert!(message.contains(available), "{message}");
    assert!(world.jobs.is_empty() && world.builds.is_empty());
    let failure = base_image(&of(json!({"name": "terraform"})), &settings(), None).unwrap_err();
    assert!(
        failure.message.contains("the catalogue is empty"),
        "{}",
        failure.message
    );
}

#[test]
fn resolved_engine_is_pinned() {
    let mut world = world(json!({"name": "opentofu", "version": "1.12"}));
    assert!(world.is_ready(), "{:?}", world.status());
    assert_eq!(engine(&world).as_deref(), Some("opentofu 1.12.10"));
    // The resource keeps its engine if the catalogue contains only a newer version, and if the catalogue is empty.
    for catalogue in [vec![image("opentofu 1.12.11")], Vec::new()] {
        world.settings.engines = catalogue;
        world.restart().settle();
        assert!(world.is_ready(), "{:?}", world.status());
        assert_eq!((world.builds.len(), world.run_number()), (1, 1));
        assert_eq!(engine(&world).as_deref(), Some("opentofu 1.12.10"));
    }
    world.settings.engines = vec![image("opentofu 1.12.11")];
    world
        .edit(|tf| tf.with("/engine/version", "1.12.11"))
        .settle();
    assert!(world.is_ready(), "{:?}", world.status());
    assert_eq!((world.builds.len(), world.run_number()), (2, 2));
    assert_eq!(engine(&world).as_deref(), Some("opentofu 1.12.11"));
}

#[rstest]
#[case::to_another_engine(json!({"name": "opentofu", "version": "1.12.6"}))]
#[case::to_an_older_version(json!({"name": "terraform", "version": "1.9.8"}))]
fn engine_switch_needs_permission(#[case] next: Value) {
    let mut world = world(json!({"version": "1.11.4"}));
    assert!(world.is_ready(), "{:?}", world.status());
    world.edit(|tf| tf.with("/engine", next)).settle();
    assert_eq!(
        (world.reason().as_str(), world.is_stalled()),
        ("EngineChangeNotAllowed", true)
    );
    let message = world.status().message;
    for part in [
        "the last apply used terraform 1.11.4",
        r#"{"spec":{"engine":{"allowSwitch":true}}}"#,
        r#"{"spec":{"engine":{"name":"terraform","version":"1.11.4"}}}"#,
    ] {
        assert!(message.contains(part), "no {part:?} in {message}");
    }
    assert_eq!((world.builds.len(), world.run_number()), (1, 1));
    world
        .edit(|tf| tf.with("/engine/allowSwitch", true))
        .settle();
    assert!(world.is_ready(), "{:?}", world.status());
    assert_eq!((world.builds.len(), world.run_number()), (2, 2));
    assert_ne!(engine(&world).as_deref(), Some("terraform 1.11.4"));
}

#[test]
fn upgrade_and_switch_before_first_apply_need_no_permission() {
    let mut newer = world(json!({"version": "1.9.8"}));
    newer
        .edit(|tf| tf.with("/engine/version", "1.11.4"))
        .settle();
    assert!(newer.is_ready(), "{:?}", newer.status());

    let mut first = World::with(of(json!({"version": "1.11.4"})));
    first.settings = with_catalogue();
    first.run_to(Stage::Planning);
    first.advance_pod(0, PodEvent::Fail(FailureClass::User));
    first
        .edit(|tf| tf.with("/engine/version", "1.9.8"))
        .settle();
    assert!(first.is_ready(), "{:?}", first.status());
    assert_eq!(engine(&first).as_deref(), Some("terraform 1.9.8"));
}

#[test]
fn partial_apply_pins_the_engine() {
    let mut world = World::with(of(json!({"version": "1.11.4"})));
    world.settings = with_catalogue();
    world.run_to(Stage::Applying);
    world.advance_pod(0, PodEvent::Fail(FailureClass::User));
    world.settle();
    world
        .edit(|tf| tf.with("/engine/version", "1.9.8"))
        .settle();
    assert_eq!(world.reason(), "EngineChangeNotAllowed");
}

#[test]
fn destroy_after_refused_switch_uses_applied_engine() {
    let mut world = world(json!({"version": "1.11.4"}));
    let made_in = world.pin.as_ref().unwrap().image.clone();
    world
        .edit(|tf| tf.with("/engine", json!({"name": "opentofu"})))
        .settle();
    assert_eq!(world.reason(), "EngineChangeNotAllowed");
    world.delete();
    world.run_to(Stage::Applying);
    assert_eq!(world.pods.last().unwrap().image, made_in);
    world.settle();
    assert!(world.tf.is_none() && world.real.is_empty());
}

#[test]
fn base_image_in_spec_overrides_catalogue() {
    let tf = of(json!({"name": "opentofu"})).with("/containerRegistry/baseImage", "mine.test/x:1");
    let unresolved = base_image(&tf, &with_catalogue(), None)
        .unwrap()
        .unwrap_err();
    assert_eq!(
        (unresolved.reference.as_str(), unresolved.engine),
        ("mine.test/x:1", None)
    );
    // The catalogue contains the image in `spec.containerRegistry.baseImage`. The resource then has the engine that the catalogue names for
    // this image.
    let listed = image("opentofu 1.12.6").image;
    let tf = terraform().with("/containerRegistry/baseImage", listed);
    let unresolved = base_image(&tf, &with_catalogue(), None)
        .unwrap()
        .unwrap_err();
    assert_eq!(unresolved.engine.unwrap().to_string(), "opentofu 1.12.6");
}

/// If the base image is not in the catalogue, only the runner can detect the engine in the image. The operator passes the engine of the
/// last apply to the runner, and the runner refuses any other engine. With `spec.engine.allowSwitch`, the operator passes no engine.
#[test]
fn runner_gets_applied_engine_unless_switch_is_allowed() {
    let mut world = world(json!({"version": "1.11.4"}));
    let own_image = "mine.test/x:1";
    world.edit(|tf| tf.with("/containerRegistry/baseImage", own_image));
    let engine_before = |world: &mut World| {
        world.run_to(Stage::Planning);
        let inputs = world.record.as_ref().unwrap().inputs.clone().unwrap();
        inputs.engine_before.map(|engine| engine.to_string())
    };
    assert_eq!(
        engine_before(&mut world).as_deref(),
        Some("terraform 1.11.4")
    );
    world.advance_pod(0, PodEvent::Fail(FailureClass::User));
    world
        .record
        .as_mut()
        .unwrap()
        .report
        .as_mut()
        .unwrap()
        .failure
        .as_mut()
        .unwrap()
        // Older runners use reason `EngineSwitch` instead of `EngineChangeNotAllowed`.
        .reason = "EngineSwitch".to_owned();
    world.settle();
    assert_eq!(
        (world.reason().as_str(), world.is_stalled()),
        ("EngineChangeNotAllowed", true)
    );
    world.edit(|tf| tf.with("/engine/allowSwitch", true));
    world.ledger.new_budget();
    assert_eq!(engine_before(&mut world), None);
    world.settle();
    assert!(world.is_ready(), "{:?}", world.status());
}

#[rstest]
#[case::locks_in_the_bucket("1.9.8", json!({"provider": "aws", "s3": "b", "region": "r"}), Some("dynamoDB"))]
#[case::locks_in_a_table("1.9.8", json!({"provider": "aws", "s3": "b", "region": "r", "dynamoDB": "t"}), None)]
#[case::both("1.9.8", json!({"provider": "aws", "s3": "b", "region": "r", "dynamoDB": "t", "lockFile": true}), Some("lockFile"))]
#[case::new_enough("1.11.4", json!({"provider": "aws", "s3": "b", "region": "r"}), None)]
fn backend_unsupported_by_engine_is_refused_before_build(
    #[case] version: &str,
    #[case] backend: Value,
    #[case] advice: Option<&str>,
) {
    let tf = of(json!({"version": version})).with("/backend", backend);
    let mut world = World::with(tf);
    world.settings = with_catalogue();
    world.settle();
    let status = world.status();
    match advice {
        Some(advice) => {
            assert_eq!(status.conditions[0].reason, "EngineTooOld");
            assert!(status.message.contains(advice) && status.message.contains("1.10.0"));
            assert!(world.builds.is_empty());
        }
        None => assert!(world.is_ready(), "{status:?}"),
    }
}

/// `spec.engine` without engine and version has only arguments: the engine stays that of the operator's base image.
#[test]
fn engine_arguments_keep_the_engine_and_start_no_run() {
    let mut world = World::applied();
    world.settings = with_catalogue();
    let arguments = json!({"parallelism": 20, "lockTimeout": "90s", "allowSwitch": true});
    world
        .edit(|tf| tf.with("/engine", arguments.clone()))
        .settle();
    assert!(world.is_ready(), "{:?}", world.status());
    assert_eq!(world.run_number(), 1);
    world.commit(1).run_to(Stage::Planning);
    let inputs = world.record.as_ref().unwrap().inputs.as_ref().unwrap();
    let given = inputs.engine_arguments;
    assert_eq!(
        (given.parallelism, given.lock_timeout),
        (Some(20), Some(90_000))
    );
    assert!(!given.skips_refresh);
    // The current arguments also apply to the destroy of a resource whose pin has others.
    world.settle();
    world.edit(|tf| tf.with("/engine/parallelism", 3));
    world.delete().run_to(Stage::Planning);
    let inputs = world.record.as_ref().unwrap().inputs.as_ref().unwrap();
    assert_eq!(inputs.engine_arguments.parallelism, Some(3));
}
