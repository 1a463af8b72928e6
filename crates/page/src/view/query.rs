//! Filters, order and page number of the list, from the query string.

use std::fmt;

use alustan_api::State;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::view::state::STATES;

/// Maximum length of a value in the query string, in bytes.
const MAX_VALUE_BYTES: usize = 200;

/// Key of the order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum SortKey {
    /// States that need attention first, see [`rank`](crate::view::state::rank).
    #[default]
    State,
    /// Namespace and name.
    Name,
    /// Reason of condition `Ready`.
    Reason,
    /// Time of the last change of condition `Ready`, oldest first.
    Since,
}

impl SortKey {
    const ALL: [Self; 4] = [Self::State, Self::Name, Self::Reason, Self::Since];

    /// Returns the name in the query string.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::State => "state",
            Self::Name => "name",
            Self::Reason => "reason",
            Self::Since => "since",
        }
    }
}

/// Order of the list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Sort {
    /// Key of the order.
    pub(crate) key: SortKey,
    /// Whether the order is descending.
    pub(crate) descending: bool,
}

impl Sort {
    fn parse(value: &str) -> Option<Self> {
        let (name, descending) = match value.strip_prefix('-') {
            Some(name) => (name, true),
            None => (value, false),
        };
        let key = SortKey::ALL.into_iter().find(|key| key.as_str() == name)?;
        Some(Self { key, descending })
    }
}

impl fmt::Display for Sort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let prefix = if self.descending { "-" } else { "" };
        write!(f, "{prefix}{}", self.key.as_str())
    }
}

/// Filters, order and page number of the list. Invalid values in the query string have no effect.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ListQuery {
    /// State of the resources. `None`: all states.
    pub(crate) state: Option<State>,
    /// Namespace of the resources. Empty: all namespaces.
    pub(crate) ns: String,
    /// Part of namespace, name, reason or revision, in any case. Empty: all resources.
    pub(crate) q: String,
    /// Order.
    pub(crate) sort: Sort,
    /// Index of the page, from 0. In the query string from 1.
    #[serde(skip)]
    pub(crate) page_index: usize,
}

impl ListQuery {
    /// Sets the parameter `name` to `value`, or to its default if the value is invalid.
    fn set(&mut self, name: &str, value: &str) {
        let value = value
            .get(..value.floor_char_boundary(MAX_VALUE_BYTES))
            .unwrap_or_default()
            .trim();
        match name {
            "state" => {
                self.state = STATES.into_iter().find(|state| state.as_str() == value);
            }
            "ns" => value.clone_into(&mut self.ns),
            "q" => value.clone_into(&mut self.q),
            "sort" => self.sort = Sort::parse(value).unwrap_or_default(),
            "page" => self.page_index = value.parse::<usize>().unwrap_or(1).saturating_sub(1),
            _ => {}
        }
    }

    /// Returns the link to the list with `value` for the parameter `name`. Another filter or order starts at the first page.
    pub(crate) fn link(&self, name: &str, value: &str) -> String {
        let mut query = self.clone();
        query.page_index = 0;
        query.set(name, value);
        query.to_link()
    }

    /// Returns the link to the list. Omits default values.
    pub(crate) fn to_link(&self) -> String {
        let mut parameters = form_urlencoded::Serializer::new(String::new());
        if let Some(state) = self.state {
            parameters.append_pair("state", state.as_str());
        }
        for (name, value) in [("ns", &self.ns), ("q", &self.q)] {
            if !value.is_empty() {
                parameters.append_pair(name, value);
            }
        }
        if self.sort != Sort::default() {
            parameters.append_pair("sort", &self.sort.to_string());
        }
        if self.page_index > 0 {
            parameters.append_pair("page", &self.page_index.saturating_add(1).to_string());
        }
        match parameters.finish() {
            parameters if parameters.is_empty() => "/".to_owned(),
            parameters => format!("/?{parameters}"),
        }
    }
}

impl<'de> Deserialize<'de> for ListQuery {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Parameters)
    }
}

/// Reads parameters in any order. The last value of a repeated parameter takes precedence.
struct Parameters;

impl<'de> Visitor<'de> for Parameters {
    type Value = ListQuery;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("parameters of the list")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ListQuery, A::Error> {
        let mut query = ListQuery::default();
        while let Some(name) = map.next_key::<String>()? {
            match name.as_str() {
                "state" | "ns" | "q" | "sort" | "page" => {
                    query.set(&name, &map.next_value::<String>()?);
                }
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(query)
    }
}
