//! Rules 1 and 2: the operator builds each image once.

use alustan_api::run::{BUILD_PROTOCOL, PROTOCOL, PinnedImage};
use alustan_api::{Architecture, State, Terraform, names};
use alustan_core::model::image::{ImagePlan, plan};
use alustan_core::model::run_inputs::config;
use alustan_core::observed::SourceSeen;
use rstest::rstest;
use serde_json::json;

use super::{changed_nothing, executed_steps};
use crate::fixtures::{Edit as _, settings, terraform};
use crate::world::{World, condition};

fn source() -> SourceSeen {
    SourceSeen {
        revision: "a1".to_owned(),
        context: "c1".to_owned(),
        artifact: "sha256:a1".to_owned(),
        path: "web".to_owned(),
        backend: None,
        committed_at: crate::fixtures::at(0),
        commit: None,
    }
}

fn base() -> PinnedImage {
    PinnedImage {
        reference: "registry.test/base:1".to_owned(),
        resolved: "registry.test/base@sha256:1".to_owned(),
        asked: None,
        engine: None,
        protocol: PROTOCOL,
        build_protocol: Some(BUILD_PROTOCOL),
    }
}

fn image(tf: &Terraform, source: &SourceSeen, base: &PinnedImage) -> ImagePlan {
    plan(
        tf,
        source,
        base,
        Architecture::Amd64,
        "uid-of-team",
        &settings(),
    )
}

fn usual() -> ImagePlan {
    image(&terraform(), &source(), &base())
}

#[rstest]
#[case::another_commit(terraform(), SourceSeen { revision: "b2".to_owned(), ..source() }, base())]
#[case::another_name(terraform().named("other"), source(), base())]
#[case::another_variable(terraform().with_variable("size", 9), source(), base())]
#[case::another_script(terraform().with_script("apply", "make apply"), source(), base())]
#[case::another_builder(
    terraform().with("/containerRegistry/builder", serde_json::json!({ "image": "b" })), source(), base())]
#[case::another_kind_of_builder(
    terraform().with("/containerRegistry/builder", serde_json::json!({ "kind": "Append" })), source(), base())]
#[case::another_commit_date(terraform(), SourceSeen { committed_at: crate::fixtures::at(9), ..source() }, base())]
#[case::a_runner_with_other_steps(terraform(), source(), PinnedImage { build_protocol: None, ..base() })]
#[case::a_runner_with_earlier_steps(terraform(), source(), PinnedImage { build_protocol: Some(2), ..base() })]
fn image_tag_stays_the_same_with(
    #[case] tf: Terraform,
    #[case] source: SourceSeen,
    #[case] base: PinnedImage,
) {
    assert_eq!(image(&tf, &source, &base).tag, usual().tag);
}

#[rstest]
#[case::another_context(terraform(), SourceSeen { context: "c2".to_owned(), ..source() }, base())]
#[case::another_path(terraform(), SourceSeen { path: "x".to_owned(), ..source() }, base())]
#[case::module_backend(
    terraform(), SourceSeen { backend: Some("gcs".to_owned()), ..source() }, base())]
#[case::another_base_digest(
    terraform(), source(), PinnedImage { resolved: "registry.test/base@sha256:2".to_owned(), ..base() })]
#[case::a_foreign_base_that_may_lack_the_runner(
    terraform(), source(), PinnedImage { reference: "elsewhere.test/base:1".to_owned(), ..base() })]
#[case::an_init_script(terraform().with_script("init", "terraform init"), source(), base())]
#[case::another_repository(
    terraform().with("/containerRegistry/imageName", "registry.test/other"), source(), base())]
fn image_tag_changes_with(
    #[case] tf: Terraform,
    #[case] source: SourceSeen,
    #[case] base: PinnedImage,
) {
    assert_ne!(image(&tf, &source, &base).tag, usual().tag);
}

#[test]
fn image_tag_differs_between_namespaces() {
    let in_other_namespace = plan(
        &terraform(),
        &source(),
        &base(),
        Architecture::Amd64,
        "uid-of-another",
        &settings(),
    );
    assert_ne!(in_other_namespace.tag, usual().tag);
}

#[test]
fn runner_with_other_build_steps_is_replaced_only_in_the_pod() {
    let older = PinnedImage {
        build_protocol: None,
        ..base()
    };
    let image = image(&terraform(), &source(), &older);
    assert!(image.inject_into_pod && !image.inject);
    assert!(!usual().inject_into_pod);
}

#[test]
fn resources_with_the_same_content_share_one_build() {
    let other_image = image(&terraform().named("other"), &source(), &base());
    assert_eq!(
        names::build_job(&other_image.tag),
        names::build_job(&usual().tag)
    );
}

#[test]
fn dockerfile_copies_most_volatile_files_in_the_last_layer() {
    insta::assert_snapshot!(usual().dockerfile);
    let foreign = PinnedImage {
        reference: "elsewhere.test/base:1".to_owned(),
        ..base()
    };
    insta::assert_snapshot!(image(&terraform(), &source(), &foreign).dockerfile);
}

#[test]
fn context_is_pushed_before_the_build_starts() {
    let mut world = World::new();
    let mut steps = Vec::new();
    for _ in 0..8 {
        steps.extend(executed_steps(&world.reconcile()));
    }
    let job = names::build_job(&world.status().image.unwrap().tag);
    let created = format!("CreateJob {job}");
    assert_eq!(
        steps,
        [
            "AddFinalizer",
            "CreateRecord",
            "PushContext",
            "SwapRecord Starting",
            &created
        ]
    );
}

#[test]
fn image_in_the_registry_is_not_built() {
    let mut first = World::applied();
    let mut second = World::with(terraform().named("other"));
    second.images = std::mem::take(&mut first.images);
    second.settle();
    assert!(second.is_ready());
    assert!(second.builds.is_empty());
}

#[test]
fn resource_waits_for_same_build_of_another_resource() {
    let first = World::until(|world| !world.builds.is_empty());
    let mut second = World::with(terraform().named("other"));
    second.builds.clone_from(&first.builds);
    for _ in 0..8 {
        let steps = executed_steps(&second.reconcile());
        assert!(
            !steps.iter().any(|step| step.starts_with("CreateJob")),
            "{steps:?}"
        );
    }
    assert_eq!(second.reason(), "Building");
    second.settle();
    assert!(second.is_ready());
}

#[test]
fn commit_outside_module_starts_no_build_and_no_run() {
    let mut world = World::applied();
    let runs = world.run_number();
    world.commit_outside();
    let reconciled = world.reconcile();
    assert!(reconciled.decision.steps.is_empty() && reconciled.decision.start.is_none());
    assert!(changed_nothing(&world.reconcile()));
    assert_eq!(world.run_number(), runs);
    assert_eq!(world.status().source.unwrap().revision, "1c0ffee0000");
    assert!(world.is_ready());
}

#[test]
fn a_commit_to_the_module_builds_and_applies() {
    let mut world = World::applied();
    world.commit(1);
    world.settle();
    assert_eq!(world.builds.len(), 2);
    assert_eq!(world.last_run().1, "commit 0c0ffee..1c0ffee");
    assert_eq!(world.real.config, Some(world.wanted_now()));
}

#[test]
fn a_revert_finds_its_image_in_the_registry() {
    let mut world = World::applied();
    world.commit(1).settle();
    world.commit(0).settle();
    assert_eq!(world.builds.len(), 2);
    assert_eq!(world.real.config, Some(world.wanted_now()));
}

#[test]
fn a_moved_tag_of_the_base_image_rebuilds_nothing() {
    let mut world = World::applied();
    world.base_digest = 2;
    world.restart().settle();
    assert_eq!(world.builds.len(), 1);
    assert_eq!(world.run_number(), 1);
    assert!(
        world
            .status()
            .image
            .unwrap()
            .base
            .ends_with("sha256:base-1")
    );
}

#[test]
fn an_image_in_use_needs_no_registry() {
    let mut world = World::applied();
    world.registry_up = false;
    world.restart().settle();
    assert!(world.is_ready(), "{:?}", world.status());
}

#[test]
fn build_waits_for_a_slot() {
    let mut world = World::new();
    world.has_free_slot = false;
    assert_eq!(
        world.settle(),
        None,
        "a queued build has no requeue interval"
    );
    assert!(world.reason() == "Queued" && world.builds.is_empty());
    world.has_free_slot = true;
    world.settle();
    assert!(world.is_ready());
}

#[test]
fn queued_run_has_no_requeue_interval() {
    let mut world = World::until(|world| !world.images.is_empty());
    world.has_free_slot = false;
    assert_eq!(world.settle(), None);
    assert_eq!(world.reason(), "Queued");
    assert!(world.jobs.is_empty());
}

/// Restarts the operator with another default base image (`--base-image`).
fn upgrade(world: &mut World) {
    "registry.test/base:2".clone_into(&mut world.settings.base_image);
    world.restart().settle();
}

fn upgraded() -> World {
    let mut world = World::applied();
    upgrade(&mut world);
    world
}

#[test]
fn new_base_image_of_operator_starts_no_build_and_no_run() {
    let world = upgraded();
    assert!(world.is_ready());
    assert_eq!((world.run_number(), world.builds.len()), (1, 1));
    let image = world.status().image.unwrap();
    assert!(image.digest.is_some() && image.base.starts_with("registry.test/base:1@"));
}

#[test]
fn next_run_uses_new_base_image_of_operator() {
    let mut world = upgraded();
    world.now = world.settle().unwrap();
    for _ in 0..20 {
        world.reconcile();
        world.advance_builds(None);
        let status = world.status();
        assert!(
            world.is_ready() && status.state == State::Success,
            "{status:?}"
        );
        assert_eq!(condition(&status, "ImageReady"), "True");
    }
    world.settle();
    assert_eq!((world.run_number(), world.builds.len()), (2, 2));
    assert_eq!(world.last_run().1, "interval");
    let base = world.status().image.unwrap().base;
    assert!(base.starts_with("registry.test/base:2@"), "{base}");
}

#[test]
fn a_resource_stays_ready_while_the_next_image_cannot_be_built() {
    let mut world = upgraded();
    world.now = world.settle().unwrap();
    world.registry_up = false;
    world.restart().settle();
    let status = world.status();
    assert!(world.is_ready() && status.message.contains("; the next run waits: "));
    assert_eq!(condition(&status, "ImageReady"), "False");
    world.registry_up = true;
    world.settle();
    assert_eq!(world.last_run().1, "interval");
}

/// Returns a simulated cluster with a resource that an operator with run protocol 4 has applied.
fn applied_by_protocol_4() -> World {
    let mut world = World::applied();
    let seen = world.observe(0);
    let mut pin = world.pin.clone().unwrap();
    pin.protocol = 4;
    let mut record = world.record.clone().unwrap();
    let applied = record.history.applied.as_mut().unwrap();
    let before = config(world.tf(), &record.key, &pin.tag, &pin.inputs, &seen);
    (applied.config_hash, applied.own_hash) = (before.hash, before.own_hash);
    world.pin = Some(pin);
    world.write_record(record);
    world
}

#[rstest]
#[case::nothing_else_changed(0, 1)]
#[case::module_changed(1, 2)]
fn upgrade_from_protocol_4_applies_only_changed_modules(#[case] commit: u32, #[case] runs: i64) {
    let mut world = applied_by_protocol_4();
    world.commit(commit);
    upgrade(&mut world);
    assert!(world.is_ready());
    assert_eq!(world.run_number(), runs);
}

#[rstest]
#[case::of_a_retry_limit("/retry/limit", json!(9))]
#[case::of_suspend("/suspend", json!(true))]
fn edit_after_an_upgrade_from_protocol_4_applies_nothing(
    #[case] field: &str,
    #[case] value: serde_json::Value,
) {
    let mut world = applied_by_protocol_4();
    upgrade(&mut world);
    assert!(changed_nothing(&world.reconcile()));
    world.edit(|tf| tf.with(field, value)).settle();
    assert!(world.is_ready());
    world.edit(|tf| tf.with("/suspend", false)).settle();
    assert_eq!((world.is_ready(), world.run_number()), (true, 1));
}
