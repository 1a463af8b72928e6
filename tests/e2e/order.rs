//! Order: dependents run after their dependencies and are destroyed before them (`docs/development/rules.md`, rules 13 and 14).

use std::collections::BTreeMap;

use alustan_api::{State, Terraform};
use alustan_tests::{Counter, Scene, condition, scene};
use kube::api::{DeleteParams, ListParams};
use serde_json::{Value, json};

fn module(counter: &Counter) -> String {
    let object = counter.counted_object_per_value("var.me");
    format!(
        "variable \"me\" {{}}\nvariable \"value\" {{ default = \"\" }}\nvariable \"up\" {{ default = \"\" }}\n\
         output \"v\" {{\n  value = var.value\n  precondition {{\n    \
         condition = var.value != \"bad\"\n    error_message = \"bad\"\n  }}\n}}\noutput \"up\" {{ value = var.up }}\n{object}"
    )
}

/// Returns a resource `name` of the module `node`. It depends on the resources `on`.
fn node(scene: &Scene, name: &str, on: &[String]) -> Value {
    let mut node = scene.resource_of(name, "node");
    node["spec"]["gitRepo"]["interval"] = json!("1m");
    node["spec"]["variables"] = json!({"me": name});
    node["spec"]["cache"] = json!({"enabled": false});
    let on: Vec<_> = on.iter().map(|name| json!({"name": name})).collect();
    node["spec"]["dependsOn"] = json!(on);
    node
}

#[tokio::test]
async fn order_of_a_stack_follows_dependencies_in_both_directions() {
    stack_of(3, 2).await;
}

#[tokio::test]
#[ignore = "takes two minutes, and core's `resources_start_once_their_dependencies_are_ready` and `all_resources_are_deleted_after_their_dependents` show the same for any stack"]
async fn order_of_a_stack_of_fifty_follows_dependencies() {
    stack_of(5, 10).await;
}

/// Applies and deletes a stack of `levels` with `width` resources each. Each resource depends on two resources of the level below.
async fn stack_of(levels: usize, width: usize) {
    scene("stack", |scene| async move {
        let counter = Counter::start().await;
        scene
            .commit("node", &[("main.tf", &module(&counter))])
            .await;
        let name = |level: usize, i: usize| format!("l{level}-{i}");
        let mut on = BTreeMap::new();
        for level in (0..levels).rev() {
            for i in 0..width {
                let below = level.checked_sub(1);
                let below = below.map(|below| vec![name(below, i), name(below, (i + 1) % width)]);
                on.insert(name(level, i), below.unwrap_or_default());
            }
        }
        // Creates dependents before their dependencies.
        for (name, on) in on.iter().rev() {
            scene.apply(&node(&scene, name, on)).await;
        }
        for name in on.keys() {
            scene.ready_after_run(name, 1).await;
        }
        let paths = counter.requested_paths();
        assert_eq!(paths.len(), levels * width, "{paths:?}");
        let at = |action: &str, name: &str, paths: &[String]| {
            let path = format!("/{action}/{name}");
            let at = paths.iter().position(|request| *request == path);
            assert!(at.is_some(), "no {path}");
            at
        };
        for (name, on) in &on {
            for on in on {
                assert!(
                    at("made", on, &paths) < at("made", name, &paths),
                    "{on} before {name}"
                );
            }
        }
        let api = scene.api::<Terraform>();
        let (all, now) = (ListParams::default(), DeleteParams::background());
        let uids: Vec<_> = api.list(&all).await.unwrap().items;
        api.delete_collection(&now, &all).await.unwrap();
        for tf in uids {
            scene
                .deleted(&tf.metadata.name.unwrap(), &tf.metadata.uid.unwrap())
                .await;
        }
        let paths = counter.requested_paths();
        assert_eq!(paths.len(), 2 * levels * width, "{paths:?}");
        for (name, on) in &on {
            for on in on {
                assert!(
                    at("destroyed", name, &paths) < at("destroyed", on, &paths),
                    "{name} before {on}"
                );
            }
        }
        scene.nothing_left().await;
    })
    .await;
}

#[tokio::test]
async fn order_a_change_runs_dependents_and_a_failure_blocks_them() {
    scene("order", |scene| async move {
        let counter = Counter::start().await;
        scene
            .commit("node", &[("main.tf", &module(&counter))])
            .await;
        let takes = |name: &str, from: &str| {
            let mut node = node(&scene, name, &[]);
            node["spec"]["variablesFrom"] = json!([
                {"terraformRef": {"name": from, "outputs": {"up": "v"}}},
            ]);
            node
        };
        let mut base = node(&scene, "base", &[]);
        base["spec"]["variables"]["value"] = json!("one");
        base["spec"]["retry"] = json!({"limit": 1});
        scene.apply(&takes("web", "base")).await;
        scene.apply(&node(&scene, "aside", &[])).await;
        scene.apply(&base).await;
        scene.ready("web").await;
        scene.ready("aside").await;
        assert_eq!(scene.data("web-outputs").await["up"], "one");

        base["spec"]["variables"]["value"] = json!("two");
        scene.apply(&base).await;
        let tf = scene.ready_after_run("web", 2).await;
        assert_eq!(tf.status.unwrap().runs[0].trigger, "input Terraform base");
        assert_eq!(scene.data("web-outputs").await["up"], "two");
        assert_eq!(scene.run_number("aside").await, 1);

        // An unchanged output starts no run of dependents.
        base["spec"]["variables"]["other"] = json!("x");
        scene.apply(&base).await;
        scene.ready_after_run("base", 3).await;
        // The dependency `base` fails, so no run of `web` starts.
        base["spec"]["variables"]["value"] = json!("bad");
        scene.apply(&base).await;
        scene.stalled("base").await;
        let mut web = takes("web", "base");
        web["spec"]["variables"]["value"] = json!("new");
        scene.apply(&web).await;
        let message = scene.reason("web", "DependencyNotReady").await;
        assert!(
            message.contains("spec.variablesFrom[0].terraformRef: base is not ready ("),
            "{message}"
        );
        let tf = scene.api::<Terraform>().get("web").await.unwrap();
        let status = tf.status.as_ref().unwrap();
        assert_eq!(status.blocked_by[0].name, "base");
        assert_eq!(condition(&tf, "DependenciesReady").unwrap().status, "False");
        assert_eq!(status.run, Some(2));
        base["spec"]["variables"]["value"] = json!("three");
        scene.apply(&base).await;
        scene.ready_after_run("web", 3).await;
        assert_eq!(scene.run_number("aside").await, 1);
    })
    .await;
}

#[tokio::test]
async fn order_a_change_on_two_paths_is_applied_once() {
    scene("diamond", |scene| async move {
        let counter = Counter::start().await;
        scene
            .commit("node", &[("main.tf", &module(&counter))])
            .await;
        let takes = |name: &str, from: &[(&str, &str, &str)]| {
            let mut node = node(&scene, name, &[]);
            let from = from.iter().map(|(from, variable, output)| {
                json!({"terraformRef": {"name": from, "outputs": {*variable: output}}})
            });
            node["spec"]["variablesFrom"] = from.collect();
            node
        };
        let mut base = node(&scene, "base", &[]);
        base["spec"]["variables"]["value"] = json!("one");
        scene.apply(&base).await;
        scene.apply(&takes("left", &[("base", "up", "v")])).await;
        scene.apply(&takes("far", &[("left", "up", "up")])).await;
        let end = [("base", "value", "v"), ("far", "up", "up")];
        scene.apply(&takes("end", &end)).await;
        scene.ready("end").await;

        base["spec"]["variables"]["value"] = json!("two");
        scene.apply(&base).await;
        scene
            .wait("end", "both values", |tf| {
                let status = tf.status.as_ref();
                status.is_some_and(|status| status.run > Some(1) && status.state == State::Success)
            })
            .await;
        let data = scene.data("end-outputs").await;
        assert_eq!((data["v"].as_str(), data["up"].as_str()), ("two", "two"));
        for name in ["left", "far", "end"] {
            assert_eq!(scene.run_number(name).await, 2, "{name}");
        }
    })
    .await;
}

#[tokio::test]
async fn order_of_destruction_and_dependency_cycles_are_reported() {
    scene("reverse", |scene| async move {
        let counter = Counter::start().await;
        scene
            .commit("node", &[("main.tf", &module(&counter))])
            .await;
        let cluster = node(&scene, "cluster", &[]);
        let apps = node(&scene, "apps", &["cluster".to_owned()]);
        scene.apply(&cluster).await;
        scene.apply(&apps).await;
        scene.ready("apps").await;
        let uid = scene
            .begin_to_delete("cluster", &DeleteParams::foreground())
            .await;
        let tf = scene
            .wait_for_message("cluster", "dependents are destroyed first: apps")
            .await;
        assert_eq!(condition(&tf, "Ready").unwrap().reason, "DependentsExist");
        assert_eq!(counter.count("/destroyed/cluster"), 0);
        scene.delete("apps", &DeleteParams::foreground()).await;
        scene.deleted("cluster", &uid).await;
        assert_eq!(
            counter.requested_paths()[2..],
            ["/destroyed/apps", "/destroyed/cluster"]
        );

        for (name, on) in [("a", "b"), ("b", "c"), ("c", "a")] {
            scene.apply(&node(&scene, name, &[on.to_owned()])).await;
        }
        let (reason, message) = scene.stalled("a").await;
        assert_eq!(reason, "DependencyCycle");
        assert!(
            message.contains("spec.dependsOn[0]: dependency cycle: a -> b -> c -> a"),
            "{message}"
        );
        scene.apply(&node(&scene, "c", &[])).await;
        scene.ready("a").await;
        assert_eq!(
            counter.requested_paths()[4..],
            ["/made/c", "/made/b", "/made/a"]
        );
    })
    .await;
}
