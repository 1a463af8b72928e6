//! Lists of tags: <https://github.com/opencontainers/distribution-spec/blob/main/spec.md#listing-tags>.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, SeqAccess, Visitor},
};

use crate::reference::is_tag;

/// Maximum number of tags of a repository that is pruned.
pub(super) const TAGS: usize = 100_000;

/// Response to a request for tags.
#[derive(Deserialize)]
pub(super) struct TagList {
    pub(super) tags: Option<Page>,
}

/// Tags in one response to a request for tags.
#[derive(Default)]
pub(super) struct Page {
    /// Number of entries, including invalid entries; [`TAGS`] + 1 if the response has more than [`TAGS`] entries.
    pub(super) size: usize,
    /// Tags of valid form, see [`is_tag`].
    pub(super) valid: Vec<String>,
}

impl<'de> Deserialize<'de> for Page {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(PageVisitor)
    }
}

struct PageVisitor;

impl<'de> Visitor<'de> for PageVisitor {
    type Value = Page;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of tags")
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut list: S) -> Result<Page, S::Error> {
        let mut page = Page::default();
        while page.size < TAGS {
            let Some(tag) = list.next_element::<String>()? else {
                return Ok(page);
            };
            page.size += 1;
            if is_tag(&tag) {
                page.valid.push(tag);
            }
        }
        if list.next_element::<IgnoredAny>()?.is_some() {
            page.size += 1;
        }
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(page)
    }
}
