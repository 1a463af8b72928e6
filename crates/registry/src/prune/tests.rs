use std::collections::BTreeMap;

use proptest::prelude::*;
use rstest::rstest;
use serde_json::{Value, json};

use super::*;

const DAY: i64 = 86_400;
/// 2026-01-31T00:00:00Z, in seconds since 1970.
const NOW: i64 = 1_769_817_600;

fn now() -> Timestamp {
    Timestamp::from_second(NOW).unwrap()
}

fn tag(number: u64) -> String {
    format!("{number:040x}")
}

fn digest(text: &str) -> Digest {
    Digest::of(text.as_bytes())
}

/// Returns image `number` of the namespace with uid `mine`. The image is `days` days old. Each image has a different context.
fn image(number: u64, days: i64) -> TaggedImage {
    TaggedImage {
        tag: tag(number),
        digest: digest(&format!("image {number}")),
        runner_image: Some(RunnerImage {
            namespace: "mine".to_owned(),
            context: Some(digest(&format!("context {number}"))),
            created: Timestamp::from_second(NOW - days * DAY).unwrap(),
        }),
    }
}

fn with(mut image: TaggedImage, change: impl FnOnce(&mut RunnerImage)) -> TaggedImage {
    change(image.runner_image.as_mut().unwrap());
    image
}

fn foreign(name: &str, image: &str) -> TaggedImage {
    TaggedImage {
        tag: name.to_owned(),
        digest: digest(image),
        runner_image: None,
    }
}

fn chosen(inventory: &[TaggedImage], used: &Used, keep: usize) -> Vec<Digest> {
    let policy = Policy {
        keep,
        older_than: Duration::from_hours(7 * 24),
    };
    choose(inventory, "mine", used, policy, now())
}

fn gone(numbers: &[u64]) -> Vec<Digest> {
    let names = |kind: &str| -> Vec<Digest> {
        numbers
            .iter()
            .map(|number| digest(&format!("{kind} {number}")))
            .collect()
    };
    [names("image"), names("context")].concat()
}

fn five() -> Vec<TaggedImage> {
    (1..=5)
        .map(|number| image(number, 10 * i64::try_from(number).unwrap()))
        .collect()
}

#[rstest]
#[case::newest_two(2, &[3, 4, 5])]
#[case::limit_above_count(9, &[])]
#[case::limit_of_zero(0, &[1, 2, 3, 4, 5])]
fn newest_images_are_kept_by_count(#[case] keep: usize, #[case] expected: &[u64]) {
    let mut inventory = five();
    inventory.reverse();
    let mut chosen = chosen(&inventory, &Used::default(), keep);
    let mut expected = gone(expected);
    chosen.sort();
    expected.sort();
    assert_eq!(chosen, expected);
}

#[rstest]
#[case::young(image(1, 6), false)]
#[case::old(image(1, 7), true)]
#[case::from_the_future(image(1, -30), false)]
#[case::created_at_epoch(with(image(1, 0), |runner_image| runner_image.created = Timestamp::from_second(0).unwrap()), false)]
#[case::of_another_namespace(with(image(1, 30), |runner_image| runner_image.namespace = "theirs".to_owned()), false)]
#[case::without_labels(TaggedImage { runner_image: None, ..image(1, 30) }, false)]
#[case::user_tag(TaggedImage { tag: "v1".to_owned(), ..image(1, 30) }, false)]
#[case::longer_tag(TaggedImage { tag: format!("{}0", tag(1)), ..image(1, 30) }, false)]
fn only_old_images_of_the_namespace_are_pruned(#[case] image: TaggedImage, #[case] expected: bool) {
    assert_eq!(!chosen(&[image], &Used::default(), 0).is_empty(), expected);
}

#[test]
fn used_image_is_kept_with_its_context() {
    let by_tag = Used {
        tags: [tag(4)].into(),
        ..Used::default()
    };
    assert_eq!(chosen(&five(), &by_tag, 2), gone(&[3, 5]));
    let by_digest = Used {
        digests: [digest("image 4")].into(),
        ..Used::default()
    };
    assert_eq!(chosen(&five(), &by_digest, 2), gone(&[3, 5]));
    let context = Used {
        digests: [digest("context 3")].into(),
        ..Used::default()
    };
    let images = [gone(&[3, 4, 5])[..3].to_vec(), gone(&[4, 5])[2..].to_vec()].concat();
    assert_eq!(chosen(&five(), &context, 2), images);
}

#[test]
fn image_with_another_tag_is_kept() {
    let mut inventory = five();
    inventory.push(foreign("release", "image 5"));
    inventory.push(foreign(&tag(99), "image 4"));
    assert_eq!(chosen(&inventory, &Used::default(), 2), gone(&[3]));
}

#[test]
fn context_is_kept_while_an_image_refers_to_it() {
    let shared = |runner_image: &mut RunnerImage| runner_image.context = Some(digest("context 5"));
    let mut inventory = five();
    inventory.push(with(image(6, 90), |runner_image| {
        shared(runner_image);
        runner_image.namespace = "theirs".to_owned();
    }));
    let images = [digest("image 5")];
    assert_eq!(chosen(&inventory, &Used::default(), 4), images);
}

#[rstest]
#[case("0123456789abcdef0123456789abcdef01234567", true)]
#[case("0123456789ABCDEF0123456789abcdef01234567", false)]
#[case("context-0123456789abcdef", false)]
#[case("latest", false)]
fn only_lowercase_hex_tags_are_image_tags(#[case] tag: &str, #[case] expected: bool) {
    assert_eq!(is_image_tag(tag), expected);
}

#[test]
fn owner_is_read_from_image_labels() {
    let context = digest("c");
    let labels = json!({
        "io.alustan.namespace": "uid", "io.alustan.context": format!("h:5/x@{context}"), "other": "x",
    });
    let config =
        |labels| json!({"created": "2026-01-01T00:00:00.5Z", "config": {"Labels": labels}});
    let read = |config: Value| read_config(config.to_string().as_bytes());
    let runner_image = read(config(labels)).unwrap();
    assert_eq!(
        (runner_image.namespace.as_str(), runner_image.context),
        ("uid", Some(context))
    );
    assert_eq!(read(config(Value::Null)), None);
    assert_eq!(read(config(json!({"io.alustan.namespace": 1}))), None);
    let read_with_uid = |uid: &str| read(config(json!({"io.alustan.namespace": uid})));
    assert!(read_with_uid(&"u".repeat(64)).is_some());
    assert_eq!(read_with_uid(&"u".repeat(65)), None);
    assert_eq!(
        read(json!({"config": {"Labels": {"io.alustan.namespace": "uid"}}})),
        None
    );
    assert_eq!(read_config(b"["), None);
}

#[test]
fn unknown_fields_of_an_image_config_are_skipped() {
    // serde_json fails if a parsed value has more than 128 nested levels, but skips unknown fields of any depth.
    let deep = format!("{}{}", "[".repeat(1_000), "]".repeat(1_000));
    let other = format!("[{}{deep}]", r#"{"":0},"#.repeat(15_000));
    let labels = format!(r#"{{"x":{other},"io.alustan.namespace":"uid"}}"#);
    let container = format!(r#"{{"Env":{other},"Labels":{labels}}}"#);
    let created = "2026-01-01T00:00:00Z";
    let config = format!(r#"{{"history":{other},"created":"{created}","config":{container}}}"#);
    let runner_image = read_config(config.as_bytes()).unwrap();
    assert_eq!(
        (
            runner_image.namespace.as_str(),
            runner_image.created.to_string().as_str()
        ),
        ("uid", created)
    );
}

proptest! {
    #[test]
    fn pruning_never_removes_images_in_use(
        images in proptest::collection::vec((0_u64..12, 0_i64..40, 0_u8..3, 0_u64..4), 0..30),
        names in proptest::collection::vec((0_u64..4, 0_u64..12), 0..4),
        used in proptest::collection::btree_set(0_u64..12, 0..6),
        keep in 0_usize..8,
    ) {
        let mut inventory: BTreeMap<String, TaggedImage> = BTreeMap::new();
        for (number, days, owner, content) in images {
            let mut own = with(image(number, days), |runner_image| {
                runner_image.namespace = if owner == 0 { "theirs".to_owned() } else { "mine".to_owned() };
                runner_image.context = Some(digest(&format!("context {content}")));
            });
            // The runner image tags of the numbers `2n` and `2n + 1` refer to the same image.
            own.digest = digest(&format!("image {}", number / 2));
            inventory.insert(own.tag.clone(), own);
        }
        for (name, number) in names {
            let foreign = foreign(&format!("v{name}"), &format!("image {number}"));
            inventory.insert(foreign.tag.clone(), foreign);
        }
        let inventory: Vec<TaggedImage> = inventory.into_values().collect();
        let used = Used {
            digests: used.iter().map(|number| digest(&format!("image {number}"))).collect(),
            tags: used.iter().map(|number| tag(*number)).collect(),
        };
        let going = chosen(&inventory, &used, keep);
        let is_mine = |image: &&TaggedImage| image.runner_image.as_ref().is_some_and(|runner_image| runner_image.namespace == "mine");
        let stays: Vec<&TaggedImage> = inventory.iter().filter(|image| !going.contains(&image.digest)).collect();
        for image in &inventory {
            let old = image.runner_image.as_ref().is_some_and(|runner_image| NOW - runner_image.created.as_second() >= 7 * DAY);
            if going.contains(&image.digest) {
                prop_assert!(is_mine(&image) && old && is_image_tag(&image.tag), "{image:?}");
                prop_assert!(!used.tags.contains(&image.tag) && !used.digests.contains(&image.digest));
            }
        }
        let mine = inventory.iter().filter(is_mine).count();
        prop_assert!(stays.iter().filter(|image| is_mine(image)).count() >= keep.min(mine));
        let context = |image: &&TaggedImage| image.runner_image.as_ref().and_then(|runner_image| runner_image.context.clone());
        for needed in stays.iter().filter_map(context) {
            prop_assert!(!going.contains(&needed));
        }
    }
}
