use proptest::prelude::*;
use rstest::rstest;

use super::*;

const CREATED: &str = "2024-05-06T07:08:09Z";

fn digest(text: &str) -> Digest {
    Digest::of(text.as_bytes())
}

fn layer(name: &str) -> Layer {
    Layer {
        file: name.into(),
        digest: digest(name),
        diff_id: digest(&format!("{name}.tar")),
        size: 7,
        created_by: format!("add {name}"),
    }
}

fn settings() -> ImageConfig {
    ImageConfig {
        user: "65532:65532".into(),
        entrypoint: vec!["/runner".into(), "run".into()],
        labels: BTreeMap::from([("ours".into(), "new".into())]),
        created: CREATED.into(),
        architecture: "amd64".into(),
        os: "linux".into(),
    }
}

fn manifest_json(media_type: &str, config_type: &str, layer_types: &[&str]) -> Value {
    let layers = layer_types
        .iter()
        .map(|kind| json!({"mediaType": kind, "digest": digest("base").as_str(), "size": 3}));
    json!({
        "schemaVersion": 2,
        "mediaType": media_type,
        "config": {"mediaType": config_type, "digest": digest("config").as_str(), "size": 2},
        "layers": layers.collect::<Vec<_>>(),
    })
}

fn oci_json(layers: usize) -> Value {
    manifest_json(OCI_MANIFEST, OCI_CONFIG, &vec![OCI_LAYER; layers])
}

fn image(json: &Value) -> BaseManifest {
    match read(json.to_string().as_bytes()).unwrap() {
        Document::Image(manifest) => manifest,
        Document::Index(index) => panic!("{index:?}"),
    }
}

fn config_json(diff_ids: usize) -> Value {
    json!({
        "created": "2020-01-01T00:00:00Z",
        "architecture": "amd64",
        "os": "linux",
        "author": "base",
        "config": {
            "User": "root",
            "Env": ["PATH=/bin"],
            "Cmd": ["sh"],
            "Labels": {"ours": "old", "theirs": "kept"},
        },
        "rootfs": {"type": "layers", "diff_ids": vec!["sha256:base"; diff_ids]},
        "history": vec![json!({"created_by": "base"}); diff_ids],
    })
}

fn composed(manifest: &Value, config: &Value, settings: &ImageConfig) -> (Value, Value) {
    let layers = [layer("providers"), layer("module")];
    let image = compose(
        &image(manifest),
        config.to_string().as_bytes(),
        &layers,
        settings,
    )
    .unwrap();
    let manifest: Value = serde_json::from_slice(&image.manifest).unwrap();
    assert_eq!(
        manifest["config"]["digest"],
        Digest::of(&image.config).as_str()
    );
    assert_eq!(manifest["config"]["size"], image.config.len());
    (manifest, serde_json::from_slice(&image.config).unwrap())
}

fn refused(manifest: &Value, config: &Value) -> String {
    let config = config.to_string();
    compose(&image(manifest), config.as_bytes(), &[], &settings()).unwrap_err()
}

#[rstest]
#[case(OCI_MANIFEST, OCI_CONFIG, OCI_LAYER)]
#[case(DOCKER_MANIFEST, DOCKER_CONFIG, DOCKER_LAYER)]
fn manifest_keeps_the_format_of_the_base(
    #[case] manifest: &str,
    #[case] config: &str,
    #[case] layer_type: &str,
) {
    let zstd = "application/vnd.oci.image.layer.v1.tar+zstd";
    let base = manifest_json(manifest, config, &[layer_type, zstd]);
    let (made, _) = composed(&base, &config_json(2), &settings());
    assert_eq!(made["mediaType"], manifest);
    assert_eq!(made["config"]["mediaType"], config);
    assert_eq!(made["layers"][0], base["layers"][0]);
    assert_eq!(made["layers"][1], base["layers"][1], "zstd as it is");
    let own =
        json!({"mediaType": layer_type, "digest": layer("module").digest.as_str(), "size": 7});
    assert_eq!(made["layers"][3], own);
}

#[test]
fn config_extends_the_config_of_the_base() {
    let (_, config) = composed(&oci_json(1), &config_json(1), &settings());
    let expected = json!({
        "created": CREATED,
        "architecture": "amd64",
        "os": "linux",
        "author": "base",
        "config": {
            "User": "65532:65532",
            "Entrypoint": ["/runner", "run"],
            "Env": ["PATH=/bin"],
            "Labels": {"ours": "new", "theirs": "kept"},
        },
        "rootfs": {"type": "layers", "diff_ids": [
            "sha256:base", layer("providers").diff_id.as_str(), layer("module").diff_id.as_str(),
        ]},
        "history": [
            {"created_by": "base"},
            {"created": CREATED, "created_by": "add providers"},
            {"created": CREATED, "created_by": "add module"},
        ],
    });
    assert_eq!(config, expected);
}

#[test]
fn empty_settings_keep_those_of_the_base() {
    let empty = ImageConfig {
        user: String::new(),
        entrypoint: Vec::new(),
        labels: BTreeMap::new(),
        ..settings()
    };
    let (_, config) = composed(&oci_json(1), &config_json(1), &empty);
    assert_eq!(config["config"], config_json(1)["config"]);
}

#[test]
fn empty_base_gets_history_and_platform() {
    let (manifest, config) = composed(&oci_json(0), &json!({"os": ""}), &settings());
    assert_eq!(manifest["layers"].as_array().unwrap().len(), 2);
    assert_eq!(config["history"].as_array().unwrap().len(), 2);
    assert_eq!(config["rootfs"]["diff_ids"].as_array().unwrap().len(), 2);
    assert_eq!(
        (&config["os"], &config["architecture"]),
        (&json!("linux"), &json!("amd64"))
    );
}

#[rstest]
#[case(json!(null))]
#[case(json!([]))]
fn base_without_history_gets_none(#[case] history: Value) {
    let mut base = config_json(1);
    base["history"] = history.clone();
    let (_, config) = composed(&oci_json(1), &base, &settings());
    assert!(config["history"].as_array().is_none_or(Vec::is_empty));
    assert_eq!(config["rootfs"]["diff_ids"].as_array().unwrap().len(), 3);
}

#[test]
fn base_for_another_platform_is_refused() {
    for (field, value) in [("architecture", "arm64"), ("os", "windows")] {
        let mut config = config_json(1);
        config[field] = json!(value);
        let why = refused(&oci_json(1), &config);
        assert!(why.contains(value), "{why}");
    }
}

#[test]
fn config_with_other_layers_is_refused() {
    let why = refused(&oci_json(2), &config_json(1));
    assert!(
        why.contains("1 layers") && why.contains("manifest lists 2"),
        "{why}"
    );
}

#[test]
fn image_of_more_than_127_layers_is_refused() {
    let manifest = image(&oci_json(127));
    let config = config_json(127).to_string();
    assert!(compose(&manifest, config.as_bytes(), &[], &settings()).is_ok());
    let layers = [layer("module")];
    let why = compose(&manifest, config.as_bytes(), &layers, &settings()).unwrap_err();
    assert!(why.contains("128 layers"), "{why}");
}

#[rstest]
#[case(json!({"schemaVersion": 1, "fsLayers": [], "history": []}), "schema 1")]
#[case(json!({"schemaVersion": 3}), "schema 3")]
#[case(json!({"schemaVersion": 2}), "neither")]
#[case(json!({"schemaVersion": 2, "manifests": [], "layers": []}), "neither")]
#[case(json!({"schemaVersion": 2, "manifests": [], "mediaType": OCI_MANIFEST}), "not supported")]
#[case(manifest_json(OCI_INDEX, OCI_CONFIG, &[]), "not supported")]
#[case(manifest_json(OCI_MANIFEST, "application/vnd.cncf.helm.config.v1+json", &[]), "helm")]
#[case(json!({}), "invalid")]
#[case(json!([]), "invalid")]
fn manifest_of_another_kind_is_refused(#[case] json: Value, #[case] word: &str) {
    let why = read(json.to_string().as_bytes()).unwrap_err();
    assert!(why.contains(word), "{why}");
}

#[rstest]
#[case("digest", json!("sha256:0"))]
#[case("size", json!(-1))]
#[case("mediaType", json!(3))]
fn layer_with_an_invalid_field_is_refused(#[case] field: &str, #[case] value: Value) {
    let mut json = oci_json(1);
    json["layers"][0][field] = value;
    assert!(read(json.to_string().as_bytes()).is_err());
}

#[rstest]
#[case("application/vnd.docker.image.rootfs.foreign.diff.tar.gzip", json!(["https://x/y"]), true)]
#[case("application/vnd.oci.image.layer.nondistributable.v1.tar+gzip", json!(null), true)]
#[case(OCI_LAYER, json!(["https://x/y"]), true)]
#[case(OCI_LAYER, json!([]), false)]
fn foreign_layers_are_recognised(#[case] kind: &str, #[case] urls: Value, #[case] foreign: bool) {
    let mut json = manifest_json(OCI_MANIFEST, OCI_CONFIG, &[kind]);
    json["layers"][0]["urls"] = urls;
    assert_eq!(image(&json).layers[0].foreign, foreign);
}

fn index(platforms: &[Value]) -> Index {
    let entries = platforms.iter().enumerate().map(|(at, platform)| {
        json!({"digest": digest(&at.to_string()).as_str(), "platform": platform, "size": 1})
    });
    let json = json!({"schemaVersion": 2, "manifests": entries.collect::<Vec<_>>()});
    match read(json.to_string().as_bytes()).unwrap() {
        Document::Index(index) => index,
        Document::Image(manifest) => panic!("{manifest:?}"),
    }
}

#[test]
fn index_offers_the_default_variant_of_a_platform() {
    let index = index(&[
        json!({"os": "unknown", "architecture": "unknown"}),
        json!({"os": "windows", "architecture": "amd64"}),
        json!({"os": "linux", "architecture": "amd64", "variant": "v3"}),
        json!({"os": "linux", "architecture": "amd64"}),
        json!({"os": "linux", "architecture": "arm64", "variant": "v9"}),
        json!({"os": "linux", "architecture": "arm64", "variant": "v8"}),
    ]);
    assert_eq!(index.choose("linux", "amd64").unwrap(), digest("3"));
    assert_eq!(index.choose("linux", "arm64").unwrap(), digest("5"));
    let why = index.choose("linux", "s390x").unwrap_err();
    assert!(
        why.contains("linux/s390x") && why.contains("linux/arm64/v8"),
        "{why}"
    );
    let why = super::Index(Vec::new()).choose("linux", "amd64");
    assert!(why.unwrap_err().contains("unnamed"));
}

#[test]
fn message_names_eight_platforms_at_most() {
    let platform = |n: usize| json!({"os": "linux", "architecture": format!("cpu{n}")});
    let platforms: Vec<Value> = (1..=9).map(platform).collect();
    let why = index(&platforms).choose("linux", "amd64").unwrap_err();
    assert!(why.ends_with("linux/cpu7, linux/cpu8"), "{why}");
    assert_eq!(why.matches("linux/cpu").count(), 8);
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "\\PC{0,8}".prop_map(Value::from),
        Just(Value::from(OCI_LAYER)),
        Just(Value::from(digest("x").as_str())),
    ];
    let keys = "mediaType|digest|size|urls|platform|os|User|Labels|Cmd|type|diff_ids|\\PC{0,4}";
    leaf.prop_recursive(4, 24, 4, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(keys, inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// Generates `base` with up to two of `fields` (JSON pointers) replaced by arbitrary JSON.
fn altered(base: Value, fields: &'static [&'static str]) -> impl Strategy<Value = Value> {
    let field = prop::sample::select(fields);
    prop::collection::vec((field, any_json()), 0..3).prop_map(move |changes| {
        let mut json = base.clone();
        for (pointer, value) in changes {
            if let Some(place) = json.pointer_mut(pointer) {
                *place = value;
            }
        }
        json
    })
}

const MANIFEST_FIELDS: &[&str] = &[
    "",
    "/schemaVersion",
    "/mediaType",
    "/config",
    "/config/digest",
    "/layers",
    "/layers/0",
    "/layers/0/size",
    "/layers/0/mediaType",
];
const CONFIG_FIELDS: &[&str] = &[
    "",
    "/created",
    "/architecture",
    "/config",
    "/config/User",
    "/config/Cmd",
    "/config/Labels",
    "/config/Labels/ours",
    "/rootfs",
    "/rootfs/type",
    "/rootfs/diff_ids",
    "/history",
];

proptest! {
    #[test]
    fn any_bytes_are_a_manifest_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        let _ = read(&bytes);
    }

    #[test]
    fn composition_of_any_json_is_deterministic_or_refused(
        manifest in altered(oci_json(1), MANIFEST_FIELDS),
        config in altered(config_json(1), CONFIG_FIELDS),
    ) {
        if let Ok(Document::Image(base)) = read(manifest.to_string().as_bytes()) {
            let layers = [layer("module")];
            let config = config.to_string();
            let compose = || compose(&base, config.as_bytes(), &layers, &settings());
            let first = compose();
            prop_assert_eq!(&first, &compose());
            if let Ok(image) = first {
                let read_again = read(&image.manifest);
                let expected = base.layers.len() + layers.len();
                prop_assert!(
                    matches!(read_again, Ok(Document::Image(made)) if made.layers.len() == expected)
                );
            }
        }
    }
}
