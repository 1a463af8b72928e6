//! Invalid input. The operator reports a separate reason for each kind of invalid input, names the invalid field, and reconciles other
//! resources as usual.

use std::os::unix::fs::symlink;
use std::path::Path;

use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim};

use super::*;
use crate::outside::Outside;

/// An invalid resource: name, changed fields, and expected reason and message.
type Case = (
    &'static str,
    Vec<(&'static str, Value)>,
    &'static str,
    Vec<&'static str>,
);

/// Content of a Secret. No status and no event may contain this text.
const PASSWORD: &str = "user:the-password-of-nobody";

fn write_modules(repository: &Path) {
    let write = |path: &str, text: &str| {
        let file = repository.join(path);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, text).unwrap();
    };
    write("good/main.tf", "output \"a\" { value = 1 }\n");
    write(
        "climbs/main.tf",
        "module \"m\" { source = \"../../elsewhere\" }\n",
    );
    write("linked/main.tf", "");
    write(
        "absolute/main.tf",
        "module \"m\" { source = \"/etc/ssl\" }\n",
    );
    symlink("/etc/passwd", repository.join("linked/secrets.txt")).unwrap();
}

fn sources() -> Vec<Case> {
    let key = |name: &str, key: &str| {
        vec![
            ("/gitRepo/url", json!("git@127.0.0.1:team/web.git")),
            ("/gitRepo/sshKeySecret", json!({"name": name, "key": key})),
        ]
    };
    let url = |url: &str| vec![("/gitRepo/url", json!(url))];
    let path = |path: &str| vec![("/gitRepo/path", json!(path))];
    let script = json!({"name": "nope", "key": "x"});
    vec![
        (
            "branch",
            vec![("/gitRepo/branch", json!("nope"))],
            "BranchNotFound",
            vec!["spec.gitRepo", "nope"],
        ),
        (
            "closed",
            url("https://127.0.0.1:1/a/b"),
            "RepositoryUnreachable",
            vec!["spec.gitRepo", "127.0.0.1:1"],
        ),
        (
            "scheme",
            url("file:///etc"),
            "InvalidGitUrl",
            vec!["spec.gitRepo.url"],
        ),
        (
            "leaves",
            path("../../etc"),
            "InvalidPath",
            vec!["spec.gitRepo"],
        ),
        (
            "nowhere",
            path("no/folder"),
            "PathNotFound",
            vec!["spec.gitRepo", "no/folder"],
        ),
        (
            "climbs",
            path("climbs"),
            "PathLeavesRepository",
            vec!["climbs/main.tf:1", "../../elsewhere"],
        ),
        (
            "absolute",
            path("absolute"),
            "ModuleSourceNotAllowed",
            vec!["absolute/main.tf:1", "/etc/ssl"],
        ),
        (
            "linked",
            path("linked"),
            "SymlinkLeavesContext",
            vec!["linked/secrets.txt", "/etc/passwd"],
        ),
        (
            "no-secret",
            key("nope", "key"),
            "SecretNotFound",
            vec!["spec.gitRepo.sshKeySecret", "nope"],
        ),
        (
            "no-entry",
            key("text", "nope"),
            "SecretKeyNotFound",
            vec!["spec.gitRepo.sshKeySecret", "nope"],
        ),
        (
            "text-key",
            key("text", "key"),
            "SshKeyInvalid",
            vec!["spec.gitRepo"],
        ),
        (
            "no-map",
            vec![("/scripts/apply/configMapRef", script)],
            "ConfigMapNotFound",
            vec!["spec.scripts.apply.configMapRef", "nope"],
        ),
    ]
}

fn registries() -> Vec<Case> {
    let seed = "docker.io/alustan/terrform (image name to be built and push by the controller)";
    let name = "spec.containerRegistry.imageName";
    let secret = "spec.containerRegistry.secretRef";
    let base = "spec.containerRegistry.baseImage";
    let image = |name: &str| vec![("/containerRegistry/imageName", json!(name))];
    let with_secret = |name: &str, key: &str| {
        let named = json!({"name": name, "key": key});
        vec![("/containerRegistry/secretRef", named)]
    };
    let with_base = |name: &str| vec![("/containerRegistry/baseImage", json!(name))];
    let token = "spec.terraformRegistries[0].secretRef";
    let with_token = |name: &str, key: &str| {
        let reference = json!({"name": name, "key": key});
        let registry = json!([{"host": "registry.test", "secretRef": reference}]);
        vec![("/terraformRegistries", registry)]
    };
    vec![
        (
            "no-token-secret",
            with_token("nope", "x"),
            "SecretNotFound",
            vec![token, "nope"],
        ),
        (
            "no-token",
            with_token("text", "x"),
            "SecretKeyNotFound",
            vec![token, "x"],
        ),
        (
            "token-of-words",
            with_token("text", "words"),
            "TerraformTokenInvalid",
            vec![token, "key words of Secret text"],
        ),
        (
            "seed",
            image(seed),
            "InvalidImageName",
            vec![name, "(image name"],
        ),
        (
            "tagged",
            image("docker.io/alustan/x:1"),
            "InvalidImageName",
            vec![name, "tag"],
        ),
        (
            "no-registry",
            [image("127.0.0.1:1/a/b"), with_base("127.0.0.1:1/base:1")].concat(),
            "RegistryUnreachable",
            vec!["spec.containerRegistry", "127.0.0.1:1"],
        ),
        (
            "no-login",
            with_secret("nope", "x"),
            "SecretNotFound",
            vec![secret, "nope"],
        ),
        (
            "no-login-key",
            with_secret("text", "x"),
            "SecretKeyNotFound",
            vec![secret, "x"],
        ),
        (
            "no-json",
            with_secret("text", "key"),
            "InvalidRegistryCredentials",
            vec![secret, "key"],
        ),
        (
            "odd-base",
            with_base("127.0.0.1:1/No Such"),
            "InvalidImageName",
            vec![base],
        ),
    ]
}

fn inputs() -> Vec<Case> {
    let from = |from: Value| vec![("/variablesFrom", json!([from]))];
    let object = |cel: &str| {
        from(json!({"objectRef": {
            "apiVersion": "v1", "kind": "ConfigMap", "name": "there", "values": {"v": cel},
        }}))
    };
    let selector = json!({"terraformRef": {
        "selector": {"matchLabels": {"role": "none"}}, "outputs": {"v": "id"},
    }});
    let kind = json!({"objectRef": {
        "apiVersion": "example.com/v1", "kind": "Nothing", "name": "x", "values": {"v": "object.x"},
    }});
    vec![
        (
            "selector",
            from(selector),
            "DependencyNotFound",
            vec!["spec.variablesFrom[0].terraformRef.selector"],
        ),
        (
            "syntax",
            object("object.data."),
            "InvalidExpression",
            vec!["spec.variablesFrom[0].objectRef.values.v: invalid CEL expression"],
        ),
        (
            "kind",
            from(kind),
            "KindNotFound",
            vec![
                "spec.variablesFrom[0].objectRef: the cluster has no kind Nothing in example.com/v1",
            ],
        ),
        (
            "memory",
            object(&format!("['xxxxxxxx']{}", ".map(x,x+x)".repeat(30))),
            "InvalidExpression",
            vec![
                "spec.variablesFrom[0].objectRef.values.v: the evaluation exceeds 64 MiB of memory",
            ],
        ),
        (
            "field",
            object("object.data.gone"),
            "FieldNotFound",
            vec!["spec.variablesFrom[0].objectRef.values.v: ConfigMap there does not have a field"],
        ),
        (
            "large",
            from(json!({"configMapRef": {"name": "large"}})),
            "InputTooLarge",
            vec!["spec.variablesFrom[0]: the values including ConfigMap large are 400002 bytes"],
        ),
        (
            "missing",
            from(json!({"secretRef": {"name": "gone"}})),
            "SecretNotFound",
            vec!["spec.variablesFrom[0].secretRef: Secret gone does not exist"],
        ),
    ]
}

fn caches() -> Vec<Case> {
    let claim = |name: &str| vec![("/cache/claimName", json!(name))];
    let volume =
        json!({"volumes": [{"name": "a", "persistentVolumeClaim": {"claimName": "gone"}}]});
    vec![
        (
            "no-claim",
            claim("gone"),
            "CacheClaimNotFound",
            vec!["spec.cache.claimName: PersistentVolumeClaim gone does not exist"],
        ),
        (
            "other-claim",
            claim("db-cache"),
            "CacheClaimConflict",
            vec![
                "spec.cache.claimName: PersistentVolumeClaim db-cache is the cache volume of resource db",
            ],
        ),
        (
            "data-claim",
            claim("data"),
            "CacheClaimNotAllowed",
            vec![
                "spec.cache.claimName: PersistentVolumeClaim data does not allow its use",
                "alustan.io/allow-cache=true",
            ],
        ),
        (
            "mounts-claim",
            vec![("/runner/pod", volume)],
            "PodOptionNotAllowed",
            vec![
                "volumes[0].persistentVolumeClaim.claimName: PersistentVolumeClaim gone is a shared cache volume",
            ],
        ),
    ]
}

#[tokio::test]
async fn each_bad_input_has_its_reason_and_names_its_field() {
    let operator = Operator::shared().await;
    let (space, folder) = (operator.space().await, tempfile::tempdir().unwrap());
    let outside = Outside::with_files(folder.path(), write_modules).await;
    space
        .create::<Secret>(json!({"metadata": {"name": "text"}, "stringData": {"key": PASSWORD, "words": format!("{PASSWORD} x")}}))
        .await;
    for (name, value) in [
        ("there", "value".to_owned()),
        ("large", "x".repeat(400_000)),
    ] {
        space
            .create::<ConfigMap>(json!({"metadata": {"name": name}, "data": {"key": value}}))
            .await;
    }
    let labels = labels::of("db", "uid-of-db", Component::Cache);
    let volume =
        json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
    let claim = json!({"metadata": {"name": "db-cache", "labels": labels}, "spec": volume});
    space.create::<PersistentVolumeClaim>(claim).await;
    let claim = json!({"metadata": {"name": "data"}, "spec": volume});
    space.create::<PersistentVolumeClaim>(claim).await;
    let address = &outside.address;
    let good = |name: &str| {
        let registry = json!({
            "imageName": format!("{address}/present/{name}"),
            "baseImage": format!("{address}/base:1"),
            "insecure": true,
        });
        with_all(
            resource(name),
            json!({
                "/gitRepo/url": format!("http://{address}/team/web"),
                "/gitRepo/path": "good",
                "/containerRegistry": registry,
            }),
        )
    };

    let mut cases = [sources(), registries(), inputs(), caches()].concat();
    let no_base = json!(format!("{address}/no/such-base:1"));
    cases.push((
        "no-base",
        vec![("/containerRegistry/baseImage", no_base)],
        "BaseImageNotFound",
        vec!["spec.containerRegistry.baseImage", "no/such-base:1"],
    ));
    for (name, changes, ..) in &cases {
        let mut bad = good(name);
        for (field, value) in changes {
            bad = with(bad, field, Some(value.clone()));
        }
        space.apply(&bad).await.unwrap();
    }
    let optional = json!([{"secretRef": {"name": "gone", "optional": true}}]);
    let optional = with(good("optional"), "/variablesFrom", Some(optional));
    space.apply(&optional).await.unwrap();
    space.apply(&good("web")).await.unwrap();

    let api = space.api::<Terraform>();
    let mut messages = Vec::new();
    for (name, _, reason, parts) in &cases {
        let tf = wait(&api, name, reason, |tf| condition(tf, "Ready").1 == *reason).await;
        let message = condition(&tf, "Ready").2;
        for part in parts {
            assert!(message.contains(part), "{name}: no {part:?} in {message:?}");
        }
        let events = until(&format!("an event about {name}"), async || {
            let events = events(&space, name).await;
            let reported = events.iter().any(|(event, _)| event == reason);
            let shown = format!("{events:?}");
            reported.then_some(events).ok_or(shown)
        })
        .await;
        messages.push(format!("{:?} {events:?}", tf.status));
    }
    assert!(
        !messages.concat().contains(PASSWORD),
        "the text of a Secret is repeated"
    );
    for name in ["web", "optional"] {
        let job = names::run_job(name, RunKind::Apply, 1);
        until(&job, async || {
            let existing = space.api::<Job>().get_opt(&job).await.unwrap();
            existing.map(drop).ok_or_else(|| "there is none".to_owned())
        })
        .await;
    }
}
