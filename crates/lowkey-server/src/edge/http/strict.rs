//! Strict JSON: no field that the message does not have, and no field twice.
//!
//! The messages' own reader skips unknown fields, and takes `null` for a value. Here a body first becomes a
//! [`Value`] in which no key occurs twice ([`Unique`]). The message then reads it through [`Strict`], which
//! sees at every depth the names that the message's generated code knows. So no list of fields is kept
//! here.
//!
//! - `null` stands for an absent field. But a field that is given as `null` is given, so it may not be
//!   given a second time.
//! - Both casings name one field. Giving both is giving it twice.

use std::collections::BTreeSet;
use std::fmt;

use lowkey_api::{ApiError, Reason};
use serde::Deserialize;
use serde::de::value::BorrowedStrDeserializer;
use serde::de::{self, DeserializeOwned, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use crate::edge::shown;

/// A name with more bytes than this resembles no field.
const NAME_BYTES_MAX: usize = 64;

/// A JSON value in which no object has a key twice.
pub(super) struct Unique(pub(super) Value);

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(UniqueVisitor).map(Self)
    }
}

struct UniqueVisitor;

impl<'de> Visitor<'de> for UniqueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(Unique(value)) = items.next_element()? {
            values.push(value);
        }
        Ok(values.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut fields = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            if fields.contains_key(&key) {
                return Err(de::Error::custom(given_twice(&key)));
            }
            let Unique(value) = entries.next_value()?;
            fields.insert(key, value);
        }
        Ok(fields.into())
    }
}

fn given_twice(key: &str) -> String {
    format!("has the field {:?} twice", shown(key))
}

/// Why a value is not the message that it should be. A field within a field is told with a dot.
#[derive(Debug, PartialEq)]
pub(super) enum Problem {
    /// No message has a field of this name at this place.
    Unknown { field: String, nearest: Option<&'static str> },
    /// One field stands there in both casings.
    Twice { field: String },
    /// A field's value, told as JSON, is of the wrong kind.
    Kind { field: String, value: String },
    /// The value itself is of the wrong kind; the field around it knows which that is.
    Wrong(String),
}

impl Problem {
    /// The same problem of a field's value, seen from the message that has the field.
    fn inside(self, key: &str, value: &Value) -> Self {
        let path = |field: String| format!("{key}.{field}");
        match self {
            Self::Unknown { field, nearest } => Self::Unknown { field: path(field), nearest },
            Self::Twice { field } => Self::Twice { field: path(field) },
            Self::Kind { field, value } => Self::Kind { field: path(field), value },
            Self::Wrong(_) => Self::Kind { field: key.to_owned(), value: shown(&value.to_string()) },
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown { field, .. } => write!(f, "has an unknown field {:?}", shown(field)),
            Self::Twice { field } => f.write_str(&given_twice(field)),
            Self::Kind { field, .. } => write!(f, "has a field {:?} of the wrong kind", shown(field)),
            Self::Wrong(problem) => f.write_str(problem),
        }
    }
}

impl std::error::Error for Problem {}

impl de::Error for Problem {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::Wrong(message.to_string())
    }
}

/// The refusal of an unknown name. `place` says what it names, and `advice` what to do if no known name is
/// near.
pub(super) fn unknown_field(place: &str, name: &str, nearest: Option<&str>, advice: &str) -> ApiError {
    let hint = nearest.map_or_else(|| advice.to_owned(), |nearest| format!("did you mean {nearest}?"));
    let message = format!("{place} {:?} is not known here, so nothing was done; {hint}", shown(name));
    let error = ApiError::new(Reason::UnknownField, message).with("field", shown(name));
    match nearest {
        Some(nearest) => error.with("nearest", nearest),
        None => error,
    }
}

/// Which of the `known` names was probably meant.
pub(super) fn nearest(name: &str, known: &[&'static str]) -> Option<&'static str> {
    if name.len() > NAME_BYTES_MAX {
        return None;
    }
    let distance = |known: &str| strsim::damerau_levenshtein(&name.to_lowercase(), &known.to_lowercase());
    let (distance, nearest) =
        known.iter().map(|known| (distance(known), *known)).min_by_key(|near| near.0)?;
    (distance <= name.chars().count().max(nearest.len()) / 2).then_some(nearest)
}

/// A field's name in camel case, made from either casing.
fn camel_case(name: &str) -> String {
    let mut words = name.split('_');
    let mut camel_case = words.next().unwrap_or_default().to_owned();
    for word in words {
        let mut letters = word.chars();
        camel_case.extend(letters.next().map(|first| first.to_ascii_uppercase()));
        camel_case.push_str(letters.as_str());
    }
    camel_case
}

/// Whether `key` is `name` (in snake case) in either casing.
pub(super) fn is_named(key: &str, name: &str) -> bool {
    key == name || key == camel_case(name)
}

/// The names of a message's fields, each in both casings, as its generated code gives them.
pub(super) fn fields_of<T: DeserializeOwned>() -> &'static [&'static str] {
    match T::deserialize(Names) {
        Err(NamesError(names)) => names,
        // A message reads nothing but a struct, and this gives it none.
        Ok(_) => &[],
    }
}

/// Gives a message nothing to read, and takes the names that it asks for.
struct Names;

#[derive(Debug)]
struct NamesError(&'static [&'static str]);

impl fmt::Display for NamesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

impl std::error::Error for NamesError {}

impl de::Error for NamesError {
    fn custom<T: fmt::Display>(_message: T) -> Self {
        Self(&[])
    }
}

impl<'de> Deserializer<'de> for Names {
    type Error = NamesError;

    fn deserialize_any<V: Visitor<'de>>(self, _visitor: V) -> Result<V::Value, NamesError> {
        Err(NamesError(&[]))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        _visitor: V,
    ) -> Result<V::Value, NamesError> {
        Err(NamesError(fields))
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit
        unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

/// A value as its message is to read it.
pub(super) struct Strict<'a>(pub(super) &'a Value);

/// What JSON's own reader makes of a value with nothing inside.
fn plainly<T>(result: Result<T, serde_json::Error>) -> Result<T, Problem> {
    result.map_err(de::Error::custom)
}

impl<'de> Deserializer<'de> for Strict<'de> {
    type Error = Problem;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Problem> {
        match self.0 {
            Value::Array(items) => visitor.visit_seq(Items(items.iter())),
            Value::Object(fields) => visitor.visit_map(Fields::of(fields)),
            scalar => plainly(scalar.deserialize_any(visitor)),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        known: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Problem> {
        let Value::Object(fields) = self.0 else {
            return Err(Problem::Wrong("must be a JSON object".to_owned()));
        };
        let mut given = BTreeSet::new();
        for field in fields.keys() {
            if !known.contains(&field.as_str()) {
                return Err(Problem::Unknown { field: field.clone(), nearest: nearest(field, known) });
            }
            if !given.insert(camel_case(field)) {
                return Err(Problem::Twice { field: field.clone() });
            }
        }
        visitor.visit_map(Fields::of(fields))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Problem> {
        match self.0 {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Problem> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Problem> {
        plainly(self.0.deserialize_enum(name, variants, visitor))
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct seq tuple tuple_struct map identifier ignored_any
    }
}

/// An object's fields, without those that are `null`.
struct Fields<'a> {
    rest: serde_json::map::Iter<'a>,
    /// The field whose name was read, and whose value was not.
    pending: Option<(&'a str, &'a Value)>,
}

impl<'a> Fields<'a> {
    fn of(fields: &'a Map<String, Value>) -> Self {
        Self { rest: fields.iter(), pending: None }
    }
}

impl<'de> MapAccess<'de> for Fields<'de> {
    type Error = Problem;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Problem> {
        let next = self.rest.by_ref().find(|(_, value)| !value.is_null());
        let Some((key, value)) = next else { return Ok(None) };
        self.pending = Some((key, value));
        seed.deserialize(BorrowedStrDeserializer::new(key)).map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Problem> {
        let Some((key, value)) = self.pending.take() else {
            return Err(Problem::Wrong("a value was read before its key".to_owned()));
        };
        seed.deserialize(Strict(value)).map_err(|problem| problem.inside(key, value))
    }
}

/// An array's items.
struct Items<'a>(std::slice::Iter<'a, Value>);

impl<'de> SeqAccess<'de> for Items<'de> {
    type Error = Problem;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Problem> {
        self.0.next().map(|item| seed.deserialize(Strict(item))).transpose()
    }
}

#[cfg(test)]
mod tests {
    use lowkey_api::v1::{LeaderResponse, LockHolder, ReleaseLockRequest};

    use super::*;

    fn read<T: DeserializeOwned>(text: &str) -> Result<T, Problem> {
        let Unique(value) = serde_json::from_str(text).map_err(|error| Problem::Wrong(error.to_string()))?;
        T::deserialize(Strict(&value))
    }

    fn unknown(field: &str, nearest: Option<&'static str>) -> Problem {
        Problem::Unknown { field: field.to_owned(), nearest }
    }

    #[test]
    fn a_message_knows_its_fields_in_both_casings() {
        let fields = fields_of::<ReleaseLockRequest>();
        assert!(fields.contains(&"fencing_token") && fields.contains(&"fencingToken"), "{fields:?}");
    }

    #[test]
    fn an_unknown_field_is_told_with_the_nearest_of_its_casing() {
        for (name, near) in [
            ("fencing_tokn", Some("fencing_token")),
            ("fencingTokn", Some("fencingToken")),
            ("FencingToken", Some("fencingToken")),
            ("fencing-token", Some("fencing_token")),
            ("lease", Some("leaseId")),
            ("modus", None),
            ("", None),
            ("surprise", None),
        ] {
            let told = read::<ReleaseLockRequest>(&format!(r#"{{"{name}":1}}"#));
            assert_eq!(told, Err(unknown(name, near)), "{name}");
        }
        let long = "fencing_token".repeat(1000);
        assert_eq!(read::<ReleaseLockRequest>(&format!(r#"{{"{long}":1}}"#)), Err(unknown(&long, None)));
    }

    #[test]
    fn messages_within_messages_are_read_as_strictly() {
        let read = read::<LeaderResponse>;
        assert_eq!(read(r#"{"leader":{"valeu":"x"}}"#), Err(unknown("leader.valeu", Some("value"))));
        let twice = Problem::Twice { field: "leader.owner_id".to_owned() };
        assert_eq!(read(r#"{"leader":{"ownerId":"a","owner_id":null}}"#), Err(twice));
        let kind = Problem::Kind { field: "leader.value".to_owned(), value: "7".to_owned() };
        assert_eq!(read(r#"{"leader":{"value":7}}"#), Err(kind));
        assert!(read(r#"{"leader":{"value":"a","value":"a"}}"#).is_err());
        let absent = LeaderResponse { leader: Some(LockHolder::default()), ..LeaderResponse::default() };
        assert_eq!(read(r#"{"leader":{"value":null},"candidates":null}"#), Ok(absent));
        assert_eq!(read(r#"{"leader":null}"#), Ok(LeaderResponse::default()));
    }
}
