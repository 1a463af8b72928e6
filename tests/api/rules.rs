//! Every rule of the schema, with valid and invalid values. Accepted values must also be readable: the operator
//! cannot manage a resource that it cannot parse.

use alustan_api::{Terraform, labels, names};
use serde_json::{Value, json};

use crate::space::{Space, resource, with, with_all};

pub(crate) async fn accepts(space: &Space, field: &str, values: &[Value]) {
    for value in values {
        let web = with(resource("web"), field, Some(value.clone()));
        accepts_resource(space, &web, &format!("{field}: {value}")).await;
    }
}

async fn accepts_resource(space: &Space, resource: &Value, what: &str) {
    let stored = space
        .try_apply(resource)
        .await
        .unwrap_or_else(|error| panic!("{what} is refused: {error}"));
    let read: Result<Terraform, _> = serde_json::from_value(stored);
    read.unwrap_or_else(|error| panic!("{what} is accepted but cannot be read: {error}"));
}

/// Asserts that each of `values` at `field` is refused with a message that contains the field and `message`.
pub(crate) async fn refuses(space: &Space, field: &str, message: &str, values: &[Value]) {
    for value in values {
        let web = with(resource("web"), field, Some(value.clone()));
        refuses_resource(space, &web, field, message).await;
    }
}

async fn refuses_resource(space: &Space, resource: &Value, field: &str, message: &str) {
    let path = format!("spec{}", field.replace('/', "."));
    let Err(refusal) = space.try_create(resource).await else {
        panic!("{path} is accepted: {}", resource["spec"]);
    };
    assert!(
        refusal.contains(&path) && refusal.contains(message),
        "`{path}` and `{message}` are not both in: {refusal}"
    );
}

#[tokio::test]
async fn a_script_is_inline_or_from_a_config_map() {
    let space = Space::new().await;
    let reference = json!({"name": "scripts", "key": "run.sh"});
    let message = "exactly one of inline and configMapRef must be set";
    for script in ["init", "plan", "apply", "destroy"] {
        let field = format!("/scripts/{script}");
        let good = [
            json!({"inline": "true"}),
            json!({"configMapRef": reference}),
        ];
        accepts(&space, &field, &good).await;
        let bad = [
            json!({}),
            json!({"inline": "true", "configMapRef": reference}),
        ];
        refuses(&space, &field, message, &bad).await;
    }
    let field = "/scripts/apply";
    accepts(
        &space,
        field,
        &[json!({"inline": null, "configMapRef": reference})],
    )
    .await;
    refuses(&space, field, message, &[json!({"inline": null})]).await;
    let inline = |bytes: usize| [json!({"inline": "x".repeat(bytes)})];
    accepts(&space, field, &inline(64 << 10)).await;
    refuses(&space, field, "Too long", &inline((64 << 10) + 1)).await;
}

#[tokio::test]
async fn approval_with_scripts_requires_a_plan_script() {
    let space = Space::new().await;
    let script = json!({"inline": "true"});
    let with_scripts = |approval: &Value, scripts: Value| {
        with_all(
            resource("web"),
            json!({"/approval": approval, "/scripts": scripts}),
        )
    };
    let manual = json!({"mode": "Manual"});
    let rules = json!({"rules": [{"when": "plan.destroy > 0", "then": "Ask"}]});
    accepts(&space, "/approval", &[manual.clone(), rules.clone()]).await;
    for (approval, message) in [
        (
            &manual,
            "approval.mode Manual with scripts.apply requires scripts.plan",
        ),
        (
            &rules,
            "approval.rules with scripts.apply require scripts.plan",
        ),
    ] {
        let blind = with_scripts(approval, json!({"apply": script}));
        refuses_resource(&space, &blind, "", message).await;
        let both = with_scripts(approval, json!({"apply": script, "plan": script}));
        accepts_resource(&space, &both, "a plan and what applies it").await;
    }
    let destroy = with_scripts(&json!({"destroy": "Manual"}), json!({"destroy": script}));
    let message = "approval.destroy Manual cannot be combined with scripts.destroy";
    refuses_resource(&space, &destroy, "", message).await;
}

#[tokio::test]
async fn wrapper_with_scripts_is_refused() {
    let space = Space::new().await;
    let wrapper = json!({"wrapper": "terragrunt"});
    let script = json!({"init": {"inline": "true"}});
    let both = with_all(
        resource("web"),
        json!({"/engine": wrapper, "/scripts": script}),
    );
    let message = "engine.wrapper cannot be combined with scripts";
    refuses_resource(&space, &both, "", message).await;
}

#[tokio::test]
async fn approval_plan_and_rules_are_validated() {
    let space = Space::new().await;
    refuses(
        &space,
        "/approval/plan",
        "Too long",
        &[json!("x".repeat(65))],
    )
    .await;
    let rule = |when: &str, then: &str| json!([{"when": when, "then": then}]);
    let field = "/approval/rules";
    refuses(&space, field, "Unsupported value", &[rule("true", "Allow")]).await;
    refuses(&space, field, "should be at least 1", &[rule("", "Ask")]).await;
    refuses(&space, field, "Too long", &[rule(&"x".repeat(1001), "Ask")]).await;
}

#[tokio::test]
async fn variable_files_are_paths_of_tfvars_files() {
    let space = Space::new().await;
    let good = [
        json!([]),
        json!(["prod.tfvars", "../env/prod.tfvars.json", "./a b/c.tfvars"]),
        json!(vec!["x.tfvars"; 20]),
    ];
    accepts(&space, "/varFiles", &good).await;
    let message =
        "must be paths of .tfvars or .tfvars.json files, relative to the folder of the module";
    let bad = [
        "",
        "prod.tf",
        "/etc/x.tfvars",
        ".tfvars.yaml",
        "a\nb.tfvars",
    ];
    refuses(&space, "/varFiles", message, &bad.map(|path| json!([path]))).await;
    refuses(
        &space,
        "/varFiles",
        "Too many",
        &[json!(vec!["x.tfvars"; 21])],
    )
    .await;
    let long = format!("{}.tfvars", "x".repeat(506));
    refuses(&space, "/varFiles", "Too long", &[json!([long])]).await;
}

#[tokio::test]
async fn terraform_registries_are_hosts_with_tokens() {
    let space = Space::new().await;
    let field = "/terraformRegistries";
    let entry = |host: &str| json!({"host": host, "secretRef": {"name": "token"}});
    let long = ["a".repeat(63).as_str(); 4].join(".");
    let good = [
        "registry.example.com",
        "registry.example.com:8443",
        "localhost:1",
        "xn--80akhbyknj4f.test",
        long.as_str(),
    ];
    accepts(&space, field, &good.map(|host| json!([entry(host)]))).await;
    let many = |count: usize| -> Value {
        let entries = (0..count).map(|number| entry(&format!("h{number}.test")));
        entries.collect()
    };
    accepts(&space, field, &[json!([]), many(16)]).await;
    refuses(&space, field, "Too many", &[many(17)]).await;
    let twice = json!([entry("a.test"), entry("a.test")]);
    refuses(&space, field, "Duplicate value", &[twice]).await;
    let bad = [
        "",
        "https://a.test",
        "a.test/",
        "A.test",
        "-a.test",
        "a..test",
        "a.test:",
        "a.test:0",
        "испытание.test",
    ];
    let message = "must be a host name in lowercase with an optional port, without a scheme";
    refuses(
        &space,
        field,
        message,
        &bad.map(|host| json!([entry(host)])),
    )
    .await;
    let message = "must not have port 443";
    refuses(&space, field, message, &[json!([entry("a.test:443")])]).await;
    let longer = format!("{long}.b");
    refuses(&space, field, "Too long", &[json!([entry(&longer)])]).await;

    let secret = |name: &str, key: &str| json!([{"host": "a.test", "secretRef": {"name": name, "key": key}}]);
    accepts(&space, field, &[secret("token", "registry.token_1")]).await;
    let reserved = ["web-run", "web-pin", "web-state-slot-0"].map(|name| secret(name, "key"));
    let message = "these names are reserved for Secrets of the operator";
    refuses(&space, field, message, &reserved).await;
    refuses(
        &space,
        field,
        "must be the name of an object",
        &[secret("A", "key")],
    )
    .await;
    refuses(&space, field, "must be a valid key", &[secret("a", "k/")]).await;
    let stored = space
        .try_apply(&with(
            resource("web"),
            field,
            Some(json!([entry("a.test")])),
        ))
        .await
        .unwrap();
    let key = &stored["spec"]["terraformRegistries"][0]["secretRef"]["key"];
    assert_eq!(*key, "token");
}

#[tokio::test]
async fn workspace_requires_a_backend_with_workspaces() {
    let space = Space::new().await;
    let good = [json!("default"), json!("staging"), json!("Team_a.1-b")];
    accepts(&space, "/workspace", &good).await;
    let message = "must consist of letters, digits, '_', '.' and '-'";
    let bad = ["", ".a", "-a", "a/b", "a b"];
    refuses(&space, "/workspace", message, &bad.map(|name| json!(name))).await;
    refuses(&space, "/workspace", "Too long", &[json!("x".repeat(91))]).await;
    let with_backend = |backend: &Value, name: &str| {
        with_all(
            resource("web"),
            json!({"/backend": backend, "/workspace": name}),
        )
    };
    let aws = json!({"provider": "aws", "s3": "store", "region": "us-east-1"});
    accepts_resource(&space, &with_backend(&aws, "staging"), "workspace in S3").await;
    let message = "managed, http and local have only the workspace default";
    for backend in [
        json!({"provider": "managed"}),
        json!({"provider": "http", "address": "https://states.example.com/web"}),
        json!({"provider": "local"}),
    ] {
        refuses_resource(&space, &with_backend(&backend, "staging"), "", message).await;
        accepts_resource(&space, &with_backend(&backend, "default"), "default").await;
    }
}

#[tokio::test]
async fn engine_name_and_version_are_validated() {
    let space = Space::new().await;
    let good = [
        json!({}),
        json!({"name": "opentofu"}),
        json!({"name": "terraform", "version": "1", "allowSwitch": true}),
        json!({"version": "1.12"}),
        json!({"version": "1.12.6"}),
        json!({"version": "1.13.0-rc1"}),
        json!({"parallelism": 1, "refresh": false, "lockTimeout": "1s"}),
        json!({"parallelism": 256, "lockTimeout": "5m"}),
        json!({"wrapper": "terragrunt"}),
        json!({"name": "opentofu", "wrapper": "terragrunt", "wrapperVersion": "1.0"}),
    ];
    accepts(&space, "/engine", &good).await;
    let name = "supported values: \"terraform\", \"opentofu\"";
    refuses(&space, "/engine/name", name, &[json!("tofu"), json!("")]).await;
    let alone = json!({"wrapperVersion": "1.0"});
    refuses(
        &space,
        "/engine",
        "wrapperVersion requires wrapper",
        &[alone],
    )
    .await;
    let wrapper = "supported values: \"terragrunt\"";
    refuses(&space, "/engine/wrapper", wrapper, &[json!("tofu")]).await;
    let bounds = "must be between 1 and 256";
    let bad = [0, -1, 257].map(|number| json!(number));
    refuses(&space, "/engine/parallelism", bounds, &bad).await;
    let duration = "must be a duration from 1s to 8760h";
    let bad = ["0s", "soon"].map(|text| json!(text));
    refuses(&space, "/engine/lockTimeout", duration, &bad).await;
    let version = "must be a version such as 1.12.6, or a version prefix such as 1.12";
    let bad = [
        "", "v1.12.6", "1.12.", "~> 1.12", "1.12.x", "1.12.6.1", "1.12-rc1", "latest",
    ];
    refuses(
        &space,
        "/engine/version",
        version,
        &bad.map(|value| json!(value)),
    )
    .await;
}

#[tokio::test]
async fn backend_requires_the_fields_of_its_provider() {
    let space = Space::new().await;
    let good = [
        json!({"provider": "managed"}),
        json!({"adopt": true}),
        json!({"migrate": true}),
        json!({}),
        json!({"provider": "managed", "adopt": true}),
        json!({"provider": "aws", "s3": "store", "region": "us-east-1", "adopt": true}),
        json!({"provider": "aws", "s3": "store", "region": "us-east-1"}),
        json!({
            "provider": "aws", "s3": "store", "region": "us-east-1", "dynamoDB": "locks",
            "key": "a/b.tfstate", "secretRef": {"name": "aws"},
        }),
    ];
    accepts(&space, "/backend", &good).await;
    for (backend, message) in [
        (
            json!({"provider": "aws", "region": "us-east-1"}),
            "provider aws requires s3: the name of the bucket",
        ),
        (
            json!({"provider": "aws", "s3": "", "region": "us-east-1"}),
            "provider aws requires s3: the name of the bucket",
        ),
        (
            json!({"provider": "aws", "s3": "store"}),
            "provider aws requires region, for example us-east-1",
        ),
        (
            json!({"provider": "aws", "s3": "store", "region": ""}),
            "provider aws requires region, for example us-east-1",
        ),
    ] {
        refuses(&space, "/backend", message, &[backend]).await;
    }
    let message = "s3, dynamoDB, lockFile, region, endpoint and bootstrap require provider aws";
    let bad = [
        json!({"provider": "managed", "s3": "store"}),
        json!({"provider": "managed", "dynamoDB": "locks"}),
        json!({"provider": "managed", "region": "us-east-1"}),
        json!({"provider": "pg", "bootstrap": true}),
        json!({"provider": "gcp", "gcs": "b", "endpoint": "https://h"}),
        json!({"adopt": true, "s3": "store"}),
        json!({"lockFile": true}),
    ];
    refuses(&space, "/backend", message, &bad).await;
    let message = "secretRef requires a provider other than managed and local";
    let bad = [
        json!({"provider": "managed", "secretRef": {"name": "aws"}}),
        json!({"provider": "local", "secretRef": {"name": "x"}}),
        json!({"secretRef": {"name": "x"}}),
    ];
    refuses(&space, "/backend", message, &bad).await;
    refuses(
        &space,
        "/backend/provider",
        "supported values: \"managed\", \"aws\", \"gcp\", \"azure\"",
        &[json!("Aws"), Value::Null],
    )
    .await;
    let null = json!({"provider": "managed", "s3": null, "secretRef": null});
    accepts(&space, "/backend", &[null]).await;
}

#[tokio::test]
async fn backend_refuses_fields_of_other_providers() {
    let space = Space::new().await;
    let address = "https://states.example.com/web";
    let good = [
        json!({
            "provider": "aws", "s3": "b", "region": "any", "endpoint": "http://minio:9000",
            "lockFile": true, "bootstrap": true, "config": {"kms_key_id": "k", "more": {"a": [1]}},
        }),
        json!({"provider": "gcp", "gcs": "b", "prefix": "p", "secretRef": {"name": "gcp"}}),
        json!({"provider": "azure", "storageAccount": "a", "container": "c", "key": "k"}),
        json!({"provider": "kubernetes", "secretSuffix": "web-state"}),
        json!({"provider": "pg", "schemaName": "team_web"}),
        json!({"provider": "http", "address": address, "lockAddress": address}),
        json!({"provider": "local"}),
        json!({"provider": "generic", "type": "oss", "config": {"bucket": "b"}}),
    ];
    accepts(&space, "/backend", &good).await;
    for (backend, message) in [
        (json!({"provider": "gcp"}), "provider gcp requires gcs"),
        (
            json!({"provider": "pg", "prefix": "p"}),
            "gcs and prefix require provider gcp",
        ),
        (
            json!({"provider": "azure", "container": "c"}),
            "provider azure requires storageAccount",
        ),
        (
            json!({"container": "c"}),
            "storageAccount, container and resourceGroup require",
        ),
        (
            json!({"provider": "gcp", "gcs": "b", "key": "k"}),
            "key requires provider aws or azure",
        ),
        (
            json!({"provider": "pg", "secretSuffix": "x"}),
            "secretSuffix requires provider kubernetes",
        ),
        (
            json!({"provider": "kubernetes", "secretSuffix": "web-1"}),
            "must not end in a number",
        ),
        (
            json!({"provider": "http", "schemaName": "x"}),
            "schemaName requires provider pg",
        ),
        (
            json!({"provider": "http"}),
            "provider http requires address",
        ),
        (
            json!({"provider": "http", "address": "https://u:p@h/x"}),
            "store credentials in the Secret",
        ),
        (
            json!({"address": address}),
            "address, lockAddress and unlockAddress require provider http",
        ),
        (
            json!({"provider": "generic"}),
            "provider generic requires type",
        ),
        (
            json!({"provider": "aws", "s3": "b", "region": "r", "type": "s3"}),
            "provider generic requires type",
        ),
        (
            json!({"provider": "generic", "type": "Oss"}),
            "must be a backend type of the engine",
        ),
    ] {
        refuses(&space, "/backend", message, &[backend]).await;
    }
    let without = with_all(
        resource("web"),
        json!({"/backend": {"provider": "local"}, "/cache": {"enabled": false}}),
    );
    let refused = space.apply(&without).await.unwrap_err();
    assert!(
        refused.contains("provider local requires a cache volume of the resource"),
        "{refused}"
    );
    let shared = with_all(
        resource("web"),
        json!({"/backend": {"provider": "local"}, "/cache": {"claimName": "plans"}}),
    );
    let refused = space.apply(&shared).await.unwrap_err();
    assert!(
        refused.contains("cache.claimName must not be set"),
        "{refused}"
    );
}

#[tokio::test]
async fn cache_claim_needs_a_valid_name_and_an_enabled_cache() {
    let space = Space::new().await;
    for name in ["Plans", "team/plans", ""] {
        let message = "must be the name of an object";
        refuses(&space, "/cache/claimName", message, &[json!(name)]).await;
    }
    let cache = json!({"enabled": false, "claimName": "plans"});
    let message = "claimName cannot be set with enabled false";
    refuses(&space, "/cache", message, &[cache]).await;
    let shared = with(
        resource("web"),
        "/cache",
        Some(json!({"claimName": "plans"})),
    );
    let stored = space.apply(&shared).await.unwrap();
    assert_eq!(
        stored["spec"]["cache"],
        json!({"claimName": "plans", "size": "5Gi"})
    );
}

#[tokio::test]
async fn durations_have_a_format_and_bounds() {
    let space = Space::new().await;
    let fields = [
        "/gitRepo/interval",
        "/driftDetection/interval",
        "/retry/minBackoff",
        "/retry/maxBackoff",
        "/timeouts/plan",
        "/timeouts/apply",
        "/timeouts/destroy",
    ];
    let good = ["1s", "30s", "5m", "1h", "1h30m", "1.5h", "90000ms", "8760h"];
    let bad = [
        "",
        "0s",
        "999ms",
        "0.5s",
        "-5m",
        "+5m",
        "5",
        "1d",
        "1 h",
        "h",
        "soon",
        "1e3s",
        "1us",
        "8760h1s",
        "99999h",
        "99999999999999999999h",
    ];
    for field in fields {
        accepts(&space, field, &good.map(Value::from)).await;
        let message = "must be a duration from 1s to 8760h, such as 30s, 5m or 1h";
        refuses(&space, field, message, &bad.map(Value::from)).await;
        refuses(&space, field, "must be of type string", &[json!(30)]).await;
    }
}

#[tokio::test]
async fn retry_limit_is_between_1_and_100() {
    let space = Space::new().await;
    accepts(&space, "/retry/limit", &[json!(1), json!(100)]).await;
    let bad = [json!(0), json!(101), json!(-1)];
    refuses(&space, "/retry/limit", "must be between 1 and 100", &bad).await;
    refuses(
        &space,
        "/retry/limit",
        "must be of type integer",
        &[json!("5")],
    )
    .await;
}

#[tokio::test]
async fn cache_size_is_a_positive_quantity() {
    let space = Space::new().await;
    let good = ["5Gi", "500M", "0.5Gi", "1e9", "1"];
    accepts(&space, "/cache/size", &good.map(Value::from)).await;
    let bad = ["", "0", "0Gi", "-1Gi", "big", "5 Gi", "5GB"];
    refuses(
        &space,
        "/cache/size",
        "must be a quantity such as 5Gi",
        &bad.map(Value::from),
    )
    .await;
}

#[tokio::test]
async fn unknown_drift_detection_mode_is_refused() {
    let space = Space::new().await;
    let good = ["Correct", "Report", "Ignore"];
    accepts(&space, "/driftDetection/mode", &good.map(Value::from)).await;
    let message = "supported values: \"Correct\", \"Report\", \"Ignore\"";
    refuses(&space, "/driftDetection/mode", message, &[json!("correct")]).await;
}

#[tokio::test]
async fn resource_without_a_required_field_is_refused() {
    let space = Space::new().await;
    for field in [
        "/gitRepo/url",
        "/containerRegistry",
        "/containerRegistry/imageName",
    ] {
        let web = with(resource("web"), field, None);
        refuses_resource(&space, &web, field, "Required value").await;
    }
    for field in ["/gitRepo/url", "/containerRegistry/imageName"] {
        refuses(&space, field, "must not be empty", &[json!("")]).await;
    }
    let mut web = resource("web");
    web.as_object_mut().unwrap().remove("spec");
    let message = space.try_create(&web).await.unwrap_err();
    assert!(message.contains("spec: Required value"), "{message}");
}

#[tokio::test]
async fn exactly_one_source_of_the_module_must_be_set() {
    let space = Space::new().await;
    let message = "exactly one of gitRepo and source must be set";
    let without = with(resource("web"), "/gitRepo", None);
    refuses_resource(&space, &without, "", message).await;
    let inline = json!({"inline": {"files": {"main.tf": ""}}});
    let both = with(resource("web"), "/source", Some(inline));
    refuses_resource(&space, &both, "", message).await;
    let kinds = json!({
        "inline": {"files": {"main.tf": ""}}, "oci": {"url": "oci://registry.test/net"},
    });
    for source in [json!({}), kinds] {
        let web = with(without.clone(), "/source", Some(source));
        let message = "exactly one of module, inline and oci must be set";
        refuses_resource(&space, &web, "/source", message).await;
    }
}

/// Asserts whether the API server accepts each of `values` at `field` of a resource without `gitRepo`.
async fn check_sources(space: &Space, field: &str, cases: &[(Value, Option<&str>)]) {
    for (value, refusal) in cases {
        let web = with(resource("web"), field, Some(value.clone()));
        let web = with(web, "/gitRepo", None);
        match (space.try_create(&web).await, refusal) {
            (Ok(_), None) => {}
            (Err(message), Some(refusal)) if message.contains(refusal) => {}
            (outcome, _) => panic!("{field} {value}: {outcome:?}"),
        }
    }
}

#[tokio::test]
async fn inline_files_are_validated() {
    let space = Space::new().await;
    let half = "x".repeat(65_536);
    let many: serde_json::Map<_, _> = (0..65)
        .map(|number| (format!("f{number}.tf"), json!("")))
        .collect();
    let name = "each name must be a file name";
    let cases = [
        (
            json!({"main.tf": "a", ".terraform.lock.hcl": "", "a.auto.tfvars": ""}),
            None,
        ),
        (json!({"a.tf": half, "b.tf": half}), None),
        (
            json!({"a.tf": half, "b.tf": half, "c.tf": "x"}),
            Some("131072"),
        ),
        (json!(many), Some("64")),
        (json!({}), Some("at least 1")),
        (json!({"../main.tf": ""}), Some(name)),
        (json!({"a/main.tf": ""}), Some(name)),
        (json!({".hidden.tf": ""}), Some(name)),
        (json!({"x.tfstate.json": ""}), Some(name)),
        (json!({"main": ""}), Some(name)),
    ];
    check_sources(&space, "/source/inline/files", &cases).await;
}

#[tokio::test]
async fn remote_modules_are_validated() {
    let space = Space::new().await;
    let module = |source: &str, version: &str| {
        let mut module = json!({"source": source});
        if !version.is_empty() {
            module["version"] = version.into();
        }
        module
    };
    let (path, version) = ("not a path", "version is required");
    let cases = [
        (
            module("terraform-aws-modules/vpc/aws", "~> 5.8, != 5.8.2"),
            None,
        ),
        (
            module("registry.test:8443/team/net/aws//sub", "1.0.0"),
            None,
        ),
        (module("git::https://git.test/team/net//a?ref=v1", ""), None),
        (module("git@github.com:team/net.git", ""), None),
        (module("terraform-aws-modules/vpc/aws", ""), Some(version)),
        (module("github.com/team/net", "1.0.0"), Some(version)),
        (module("github.com/team/net/aws", "1.0.0"), Some(version)),
        (module("github.com/team/net/aws", ""), None),
        (module("./net", ""), Some(path)),
        (module("/net", ""), Some(path)),
        (module("file:///net", ""), Some(path)),
        (module("git::file:///net", ""), Some(path)),
        (module("git::/net", ""), Some(path)),
        (module("git::https://git.test/${var.x}", ""), Some(path)),
        (module("a/b/c", "${var.x}"), Some("must be a version")),
        (
            json!({"source": "a/b/c", "version": "1", "outputs": [{"name": "vpc_id", "sensitive": true}]}),
            None,
        ),
        (
            json!({"source": "a/b/c", "version": "1", "outputs": [{"name": "a.b"}]}),
            Some("name of an output"),
        ),
    ];
    check_sources(&space, "/source/module", &cases).await;
    let files = with(resource("web"), "/varFiles", Some(json!(["a.tfvars"])));
    let files = with(files, "/source/module", Some(module("a/b/c", "1")));
    let files = with(files, "/gitRepo", None);
    let message = "varFiles cannot be combined with source.module";
    refuses_resource(&space, &files, "", message).await;
}

#[tokio::test]
async fn oci_artifacts_are_validated() {
    let space = Space::new().await;
    let artifact = |fields: Value| {
        let mut artifact = json!({"url": "oci://registry.test:5000/team/net"});
        let fields = fields.as_object().unwrap().clone();
        artifact.as_object_mut().unwrap().extend(fields);
        artifact
    };
    let digest = format!("sha256:{}", "a".repeat(64));
    let (one, url) = (
        "at most one of tag, semver and digest",
        "repository without tag and digest",
    );
    let cases = [
        (artifact(json!({})), None),
        (artifact(json!({"tag": "v1.0_a"})), None),
        (
            artifact(json!({"semver": ">=1.0.0 <2.0.0", "interval": "5m", "path": "net"})),
            None,
        ),
        (
            artifact(
                json!({"digest": digest, "secretRef": {"name": "login", "key": ".dockerconfigjson"}}),
            ),
            None,
        ),
        (artifact(json!({"tag": "1", "digest": digest})), Some(one)),
        (artifact(json!({"tag": "1", "semver": "1.x"})), Some(one)),
        (
            artifact(json!({"digest": "sha256:aa"})),
            Some("must be a digest"),
        ),
        (artifact(json!({"tag": "-a"})), Some("must be a tag")),
        (
            artifact(json!({"url": "https://registry.test/net"})),
            Some(url),
        ),
        (
            artifact(json!({"url": "oci://registry.test/net:1"})),
            Some(url),
        ),
        (
            artifact(json!({"url": "oci://registry.test/net@sha256:aa"})),
            Some(url),
        ),
        (
            artifact(json!({"url": "oci://registry.test/../net"})),
            Some(url),
        ),
        (artifact(json!({"url": "oci://registry.test"})), Some(url)),
    ];
    check_sources(&space, "/source/oci", &cases).await;
}

#[tokio::test]
async fn a_dockerfile_is_a_path_in_the_repository() {
    let space = Space::new().await;
    let field = "/containerRegistry/dockerfile";
    let good = ["Dockerfile", "docker/Dockerfile", "a..b/Dockerfile.prod"];
    accepts(&space, field, &good.map(Value::from)).await;
    for bad in ["", "/etc/passwd", "..", "../Dockerfile", "a/../../b"] {
        let web = with(resource("web"), field, Some(bad.into()));
        let message = "dockerfile must be a path in the repository";
        refuses_resource(&space, &web, "/containerRegistry", message).await;
    }
    let append =
        json!({"imageName": "h/x", "dockerfile": "Dockerfile", "builder": {"kind": "Append"}});
    let web = with(resource("web"), "/containerRegistry", Some(append));
    let message = "builder.kind Append cannot build a dockerfile";
    refuses_resource(&space, &web, "/containerRegistry", message).await;
}

#[tokio::test]
async fn prune_count_and_age_have_bounds() {
    let space = Space::new().await;
    let good = [
        json!({}),
        json!({"keep": 1, "olderThan": "1h"}),
        json!({"keep": 1000}),
    ];
    accepts(&space, "/containerRegistry/prune", &good).await;
    let keep = [0, -1, 1001].map(Value::from);
    refuses(
        &space,
        "/containerRegistry/prune/keep",
        "must be between 1 and 1000",
        &keep,
    )
    .await;
    let age = ["59m", "0s", "", "7d", "9000h"].map(Value::from);
    let message = "must be a duration from 1h to 8760h";
    refuses(&space, "/containerRegistry/prune/olderThan", message, &age).await;
}

#[tokio::test]
async fn unknown_registry_provider_is_refused() {
    let space = Space::new().await;
    let field = "/containerRegistry/provider";
    let good = ["generic", "aws", "gcp", "azure"];
    accepts(&space, field, &good.map(Value::from)).await;
    let message = "supported values: \"generic\", \"aws\", \"gcp\", \"azure\"";
    refuses(&space, field, message, &[json!("ecr"), json!("AWS")]).await;
    let field = "/containerRegistry/serviceAccountName";
    accepts(&space, field, &[json!("pusher")]).await;
    refuses(
        &space,
        field,
        "must be the name of an object",
        &[json!("a/b")],
    )
    .await;
}

#[tokio::test]
async fn runner_account_and_tokens_have_valid_names() {
    let space = Space::new().await;
    let field = "/runner/serviceAccountName";
    accepts(&space, field, &[json!("cloud"), json!("cloud.prod")]).await;
    let wrong = [json!("a/b"), json!(""), json!("A")];
    refuses(&space, field, "must be the name of an object", &wrong).await;

    let field = "/runner/tokens";
    let token = |name: &str, audience: &str| json!({"name": name, "audience": audience});
    let aws = token("aws", "sts.amazonaws.com");
    let azure = token("azure", "api://AzureADTokenExchange");
    accepts(&space, field, &[json!([]), json!([aws, azure])]).await;
    let message = "must consist of lowercase letters, digits and '-'";
    let wrong = ["../aws", "", "AWS", "a.b"].map(|name| json!([token(name, "x")]));
    refuses(&space, field, message, &wrong).await;
    refuses(
        &space,
        field,
        "should be at least 1 chars long",
        &[json!([token("a", "")])],
    )
    .await;
    refuses(
        &space,
        "/runner",
        "different names",
        &[json!({"tokens": [aws, aws]})],
    )
    .await;
}

#[tokio::test]
async fn builder_fields_match_the_builder_kind() {
    let space = Space::new().await;
    let good = [
        json!({}),
        json!({"image": "h/kaniko:1"}),
        json!({"cache": false}),
        json!({"cacheRepository": "h/layers", "cacheLifetime": "48h"}),
        json!({"kind": "Kaniko", "image": "h/kaniko:1"}),
        json!({"kind": "Append"}),
    ];
    accepts(&space, "/containerRegistry/builder", &good).await;
    let message = "image, cacheRepository and cacheLifetime require kind Kaniko";
    let bad = ["image", "cacheRepository", "cacheLifetime"]
        .map(|field| json!({"kind": "Append", field: "48h"}));
    refuses(&space, "/containerRegistry/builder", message, &bad).await;
    let unknown = [json!({"kind": "Docker"})];
    refuses(
        &space,
        "/containerRegistry/builder",
        "Unsupported value",
        &unknown,
    )
    .await;
    let message = "must be a duration from 1s to 8760h";
    refuses(
        &space,
        "/containerRegistry/builder/cacheLifetime",
        message,
        &[json!("2w")],
    )
    .await;
}

/// The schema accepts any image name. The operator reports an invalid one.
#[tokio::test]
async fn image_name_is_any_text() {
    let space = Space::new().await;
    let name = "docker.io/alustan/terrform (image name to be built and push by the controller)";
    accepts(&space, "/containerRegistry/imageName", &[json!(name)]).await;
}

/// Object names in the spec become part of API paths and of pod volumes.
#[tokio::test]
async fn invalid_object_names_are_refused() {
    let space = Space::new().await;
    let bad = [
        "",
        "My_Secret",
        "a/b",
        "../../kube-system/secrets/x",
        "a b",
        "-a",
        "a?b=c",
    ]
    .map(Value::from);
    let good = ["a", "my-secret", "my.secret-2"].map(Value::from);
    let message = "must be the name of an object";
    let script = "/scripts/apply/configMapRef";
    for (field, key) in [
        ("/gitRepo/sshKeySecret", true),
        ("/gitRepo/credentialsSecret", false),
        ("/gitRepo/githubApp/secretRef", false),
        ("/containerRegistry/secretRef", true),
        (script, true),
    ] {
        let reference = |name: &Value| {
            let mut reference = json!({"name": name});
            if key {
                reference["key"] = "k".into();
            }
            reference
        };
        accepts(&space, field, &good.clone().map(|name| reference(&name))).await;
        for name in &bad {
            let web = with(resource("web"), field, Some(reference(name)));
            refuses_resource(&space, &web, &format!("{field}/name"), message).await;
        }
        if key {
            let message = "must be a valid key of a Secret or ConfigMap";
            for wrong in ["", "a/b", "a b"] {
                let reference = json!({"name": "a", "key": wrong});
                let web = with(resource("web"), field, Some(reference));
                refuses_resource(&space, &web, &format!("{field}/key"), message).await;
            }
        }
    }
    accepts(&space, "/outputs/secretName", &good).await;
    refuses(&space, "/outputs/secretName", message, &bad).await;
    accepts(&space, "/outputs/configMapName", &good).await;
    refuses(&space, "/outputs/configMapName", message, &bad).await;
    accepts(&space, "/cache/storageClassName", &good).await;
    refuses(&space, "/cache/storageClassName", message, &bad).await;
    for name in &bad {
        let web = with(
            resource("web"),
            "/runner/envFromSecrets",
            Some(json!([{"name": name}])),
        );
        refuses_resource(&space, &web, "/runner/envFromSecrets[0]/name", message).await;
    }
}

/// Outputs in the Secret of the run record would replace the record.
#[tokio::test]
async fn outputs_cannot_replace_secrets_of_the_operator() {
    let space = Space::new().await;
    let field = "/outputs/secretName";
    let good = ["web-outputs", "web-run-2", "run", "web-stateful", "prerun"];
    accepts(&space, field, &good.map(Value::from)).await;
    let own = [
        names::record("web"),
        names::report("web"),
        names::pin("web"),
        names::state("web"),
        names::state_slot("web", 12),
        names::pull_secret("web"),
        names::record("another"),
    ];
    let message = "must not end in -run, -report, -pin, -plan, -state";
    refuses(&space, field, message, &own.map(Value::from)).await;
}

/// Returns a map with one entry at `key`.
fn entry(key: &str, value: &str) -> Value {
    json!({key: value})
}

#[tokio::test]
async fn invalid_or_reserved_output_metadata_is_refused() {
    let space = Space::new().await;
    let long = "k".repeat(254);
    let good = ["server", "ca.crt", "A_b-1", &long[1..]].map(|key| entry(key, "endpoint"));
    accepts(&space, "/outputs/keys", &good).await;
    let bad = ["a b", "a/b", "", &long].map(|key| entry(key, "endpoint"));
    let message = "each key must be a valid key of a Secret or ConfigMap";
    refuses(&space, "/outputs/keys", message, &bad).await;

    let good = [
        entry("argocd.argoproj.io/secret-type", "cluster"),
        entry("team", ""),
        entry("app.kubernetes.io/name", "web"),
    ];
    accepts(&space, "/outputs/labels", &good).await;
    let ours = [
        labels::MANAGED_BY,
        labels::COMPONENT,
        labels::UID,
        "alustan.io/mine",
    ];
    let message = "reserved for the operator";
    let bad = ours.map(|key| entry(key, "me"));
    refuses(&space, "/outputs/labels", message, &bad).await;
    let bad = [entry("a b", "x"), entry("a/b/c", "x"), entry("team", "a b")];
    let message = "must be valid Kubernetes labels";
    refuses(&space, "/outputs/labels", message, &bad).await;

    let good = [entry("example.com/vpc-id", "vpc_id"), entry("vpc", "vpc")];
    accepts(&space, "/outputs/annotations", &good).await;
    let bad = [entry(labels::JSON_OUTPUTS, "vpc_id")];
    let message = "reserved for the operator";
    refuses(&space, "/outputs/annotations", message, &bad).await;
    let bad = [entry("a b", "vpc_id"), entry("a/b/c", "vpc_id")];
    let message = "each key must be a valid annotation name";
    refuses(&space, "/outputs/annotations", message, &bad).await;

    let field = "/outputs/constantAnnotations";
    let good = [
        entry("reflector.v1.k8s.emberstack.com/reflection-allowed", "true"),
        entry("nginx.ingress.kubernetes.io/x", ""),
    ];
    accepts(&space, field, &good).await;
    let bad = [
        labels::JSON_OUTPUTS,
        "kubernetes.io/service-account.name",
        "kubectl.kubernetes.io/last-applied-configuration",
        "control-plane.alpha.kubernetes.io/leader",
    ];
    let bad = bad.map(|key| entry(key, "x"));
    refuses(&space, field, "reserved for the operator", &bad).await;
    let message = "each key must be a valid annotation name";
    refuses(&space, field, message, &[entry("a b", "x")]).await;
    let twice = json!({"annotations": {"a": "b"}, "constantAnnotations": {"a": "b"}});
    refuses(
        &space,
        "/outputs",
        "must not have the same annotation",
        &[twice],
    )
    .await;
}

#[tokio::test]
async fn resource_name_has_at_most_50_characters() {
    let space = Space::new().await;
    let (longest, longer) = ("n".repeat(50), "n".repeat(51));
    for name in ["a", "web-2", "web.prod", &longest] {
        accepts_resource(&space, &resource(name), name).await;
    }
    let message = space.try_apply(&resource(&longer)).await.unwrap_err();
    assert!(
        message.contains("metadata.name: at most 50 characters"),
        "{message}"
    );
}

#[tokio::test]
async fn variables_from_entry_has_exactly_one_source() {
    let space = Space::new().await;
    let keys = json!({"name": "db"});
    let outputs = json!({"name": "network", "outputs": {"id": "vpc_id"}});
    let object = json!({
        "apiVersion": "v1", "kind": "Service", "name": "lb", "values": {"ip": "object.spec.clusterIP"},
    });
    let good = [
        json!([{"secretRef": keys}, {"configMapRef": keys}]),
        json!([{"terraformRef": outputs}, {"objectRef": object.clone()}]),
        json!([{"secretRef": {"name": "db", "keys": {"a": "b"}, "optional": true, "trigger": false}}]),
    ];
    accepts(&space, "/variablesFrom", &good).await;
    let message = "exactly one of secretRef, configMapRef, terraformRef and objectRef must be set";
    let bad = [
        json!([{}]),
        json!([{"secretRef": keys, "configMapRef": keys}]),
    ];
    refuses(&space, "/variablesFrom", message, &bad).await;
    let mut secret = object;
    secret["kind"] = json!("Secret");
    let bad = [json!([{"objectRef": secret}])];
    refuses(
        &space,
        "/variablesFrom",
        "use secretRef to read Secrets",
        &bad,
    )
    .await;
}

#[tokio::test]
async fn reference_has_either_name_or_selector() {
    let space = Space::new().await;
    let outputs = json!({"ips": "ip"});
    let selector = json!({"matchLabels": {"role": "cluster"}});
    let from = |more: Value| {
        let mut from = json!({"outputs": outputs});
        from.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        json!([{"terraformRef": from}])
    };
    let both = json!({"name": "a", "selector": selector});
    let good = [
        from(json!({"name": "a"})),
        from(json!({"selector": selector})),
    ];
    accepts(&space, "/variablesFrom", &good).await;
    let message = "exactly one of name and selector must be set";
    let bad = [from(json!({})), from(both.clone())];
    refuses(&space, "/variablesFrom", message, &bad).await;

    let objects = |more: Value| {
        let mut objects = json!({"apiVersion": "v1", "kind": "Pod"});
        objects
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        json!([objects])
    };
    for field in ["/waitFor", "/healthChecks"] {
        let timed = json!({"name": "a", "condition": "Ready", "cel": "true", "timeout": "5m"});
        let good = [objects(timed), objects(json!({"selector": selector}))];
        accepts(&space, field, &good).await;
        refuses(
            &space,
            field,
            message,
            &[objects(json!({})), objects(both.clone())],
        )
        .await;
        let timeout = json!({"name": "a", "timeout": "soon"});
        refuses(&space, field, "timeout", &[objects(timeout)]).await;
    }
    let good = [
        objects(json!({})),
        objects(json!({"name": "a"})),
        objects(json!({"selector": selector})),
    ];
    accepts(&space, "/destroyWaitFor", &good).await;
    let message = "at most one of name and selector may be set";
    refuses(&space, "/destroyWaitFor", message, &[objects(both)]).await;
    let names = [
        json!([{"name": "A_b"}]),
        json!([{"name": "a", "namespace": "a.b"}]),
    ];
    refuses(&space, "/dependsOn", "should match", &names).await;
}

/// Version, kind and name are part of the URLs of requests of the operator.
#[tokio::test]
async fn referenced_objects_have_a_version_a_kind_and_a_name() {
    let space = Space::new().await;
    let object = |version: &str, kind: &str, name: &str| json!([{"apiVersion": version, "kind": kind, "name": name}]);
    for field in ["/waitFor", "/healthChecks", "/destroyWaitFor"] {
        let good = [
            object("v1", "Pod", "a"),
            object("networking.k8s.io/v1beta1", "Ingress", ".a"),
            object(
                "rbac.authorization.k8s.io/v1",
                "ClusterRole",
                "system:A_b..c",
            ),
        ];
        accepts(&space, field, &good).await;
        let bad = [
            object("$(A) {{ . }}", "Pod", "a"),
            object("../v1", "Pod", "a"),
            object("apps/v1/pods", "Pod", "a"),
            object("v1", "../Pod", "a"),
            object("v1", "Pod Template", "a"),
            object("v1", "Pod", ".."),
            object("v1", "Pod", "a/../../secrets/b"),
            object("v1", "Pod", "a%2fb"),
            object("v1", "Pod", "a\nb"),
        ];
        refuses(&space, field, "should match", &bad).await;
        let selector = |values: usize| {
            let expression = json!({"key": "a", "operator": "In", "values": vec!["b"; values]});
            json!([{"apiVersion": "v1", "kind": "Pod", "selector": {"matchExpressions": [expression]}}])
        };
        accepts(&space, field, &[selector(49)]).await;
        refuses(&space, field, "Too many", &[selector(51)]).await;
    }
}

/// The operator cannot read a larger integer, and the API server does not check the format of an integer.
#[tokio::test]
async fn integers_of_pod_options_have_32_bits() {
    let space = Space::new().await;
    for pod in ["/runner/pod", "/containerRegistry/builder/pod"] {
        let field = format!("{pod}/volumes");
        let volumes =
            |mode: i64| json!([{"name": "a", "secret": {"secretName": "a", "defaultMode": mode}}]);
        accepts(&space, &field, &[volumes(0), volumes(i32::MAX.into())]).await;
        let message = "less than or equal to";
        refuses(&space, &field, message, &[volumes(i64::from(i32::MAX) + 1)]).await;
        let message = "greater than or equal to";
        refuses(&space, &field, message, &[volumes(-1)]).await;
    }
}

/// The operator reads some of the objects that pod options name.
#[tokio::test]
async fn pod_options_name_objects() {
    let space = Space::new().await;
    let names = ["a/../../secrets/b", "..", "Not a name", ""].map(|name| json!(name));
    let value = |source: Value| json!([{"name": "A", "valueFrom": source}]);
    let volume = |volume: Value| {
        let mut volume = volume;
        volume["name"] = json!("a");
        json!([volume])
    };
    for pod in ["/runner/pod", "/containerRegistry/builder/pod"] {
        let cases = |name: &Value| {
            [
                ("envFrom", json!([{"secretRef": {"name": name}}])),
                ("envFrom", json!([{"configMapRef": {"name": name}}])),
                (
                    "env",
                    value(json!({"secretKeyRef": {"name": name, "key": "a"}})),
                ),
                (
                    "env",
                    value(json!({"configMapKeyRef": {"name": name, "key": "a"}})),
                ),
                ("volumes", volume(json!({"secret": {"secretName": name}}))),
                ("volumes", volume(json!({"configMap": {"name": name}}))),
                (
                    "volumes",
                    volume(json!({"persistentVolumeClaim": {"claimName": name}})),
                ),
                (
                    "volumes",
                    volume(json!({"projected": {"sources": [{"secret": {"name": name}}]}})),
                ),
                (
                    "volumes",
                    volume(json!({"csi": {"driver": "a", "nodePublishSecretRef": {"name": name}}})),
                ),
            ]
        };
        for (option, good) in cases(&json!("a.b-c")) {
            accepts(&space, &format!("{pod}/{option}"), &[good]).await;
        }
        for (option, bad) in names.iter().flat_map(cases) {
            refuses(&space, &format!("{pod}/{option}"), "should match", &[bad]).await;
        }
        let source =
            json!({"clusterTrustBundle": {"name": "example.com:internal:ca", "path": "ca.crt"}});
        let bundle = volume(json!({"projected": {"sources": [source]}}));
        accepts(&space, &format!("{pod}/volumes"), &[bundle]).await;
    }
}

/// The operator copies texts into messages, annotations and objects.
#[tokio::test]
async fn texts_have_a_maximum_length() {
    let space = Space::new().await;
    for (field, max) in [
        ("/gitRepo/url", 2048),
        ("/gitRepo/path", 1024),
        ("/gitRepo/branch", 1024),
        ("/containerRegistry/imageName", 1024),
        ("/containerRegistry/baseImage", 1024),
    ] {
        accepts(&space, field, &[json!("a".repeat(max))]).await;
        refuses(&space, field, "Too long", &[json!("a".repeat(max + 1))]).await;
    }
    let interval = json!("1s".repeat(33));
    refuses(&space, "/gitRepo/interval", "Too long", &[interval]).await;
    let include = |count: usize| json!(vec!["a"; count]);
    accepts(&space, "/gitRepo/include", &[include(100)]).await;
    refuses(&space, "/gitRepo/include", "Too many", &[include(101)]).await;
}

#[tokio::test]
async fn notifications_are_limited_in_count_and_size() {
    let space = Space::new().await;
    let address = |size: usize| format!("https://a.test/{}", "x".repeat(size - 15));
    let places = |count: usize, size: usize| json!(vec![json!({"url": address(size)}); count]);
    let field = "/notifications";
    accepts(&space, field, &[places(8, 2048)]).await;
    refuses(&space, field, "Too many", &[places(9, 16)]).await;
    refuses(&space, field, "Too long", &[places(1, 2049)]).await;
}

#[tokio::test]
async fn git_repo_reference_and_ca_bundle_are_validated() {
    let space = Space::new().await;
    let place = |fields: Value| {
        let mut repo = json!({"url": "https://127.0.0.1:1/team/infra"});
        repo.as_object_mut()
            .unwrap()
            .extend(fields.as_object().unwrap().clone());
        repo
    };
    let commit = "0123456789abcdefABCDEF0123456789abcdef01";
    let good = [
        json!({}),
        json!({"branch": "main"}),
        json!({"tag": "v1.0"}),
        json!({"commit": commit}),
        json!({"commit": "a".repeat(64)}),
    ];
    accepts(&space, "/gitRepo", &good.map(place)).await;
    let bad = [
        json!({"branch": "main", "tag": "v1"}),
        json!({"branch": "main", "commit": commit}),
        json!({"tag": "v1", "commit": commit}),
    ];
    let message = "at most one of branch, tag and commit may be set";
    refuses(&space, "/gitRepo", message, &bad.map(place)).await;
    let app = |more: Value| {
        let mut app = json!({"secretRef": {"name": "app"}});
        app.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        app
    };
    let good = [json!({}), json!({"repositories": ["modules", "a.b_c-D"]})];
    let good = good.map(|more| json!({"githubApp": app(more)}));
    accepts(&space, "/gitRepo", &good.map(place)).await;
    let both = json!({"githubApp": app(json!({})), "credentialsSecret": {"name": "login"}});
    let message = "at most one of githubApp and credentialsSecret may be set";
    refuses(&space, "/gitRepo", message, &[place(both)]).await;
    let message = "githubApp requires a url that starts with https://";
    let urls = ["http://127.0.0.1:1/team/infra", "git@127.0.0.1:team/infra"];
    let bad = urls.map(|url| json!({"url": url, "githubApp": app(json!({}))}));
    refuses(&space, "/gitRepo", message, &bad).await;
    let many: Vec<String> = (0..51).map(|number| number.to_string()).collect();
    for (names, message) in [
        (json!(["team/modules"]), "must be names of repositories"),
        (json!([""]), "must be names of repositories"),
        (json!(many), "must have at most 50 items"),
    ] {
        let repo = place(json!({"githubApp": app(json!({ "repositories": names }))}));
        let web = with(resource("web"), "/gitRepo", Some(repo));
        let field = "/gitRepo/githubApp/repositories";
        refuses_resource(&space, &web, field, message).await;
    }
    let bad = ["", "c0ffee1", &commit[1..], "HEAD", &"g".repeat(40)].map(Value::from);
    refuses(&space, "/gitRepo/commit", "must be a full commit id", &bad).await;
    refuses(&space, "/gitRepo/tag", "must not be empty", &[json!("")]).await;
    let pem = "-----BEGIN CERTIFICATE-----";
    accepts(&space, "/gitRepo/caBundle", &[json!(pem)]).await;
    let message = "must contain certificates in PEM format";
    refuses(&space, "/gitRepo/caBundle", message, &[json!("aGVsbG8=")]).await;
    let long = format!("{pem}{}", "x".repeat(65536));
    refuses(&space, "/gitRepo/caBundle", "65536", &[json!(long)]).await;
}
