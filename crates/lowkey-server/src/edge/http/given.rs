//! Messages made from text values: parameters of a URL, parts of its path.
//!
//! A message's generated code knows the type of each field. So no list of fields is kept here, only what is
//! allowed in numbers.

use std::fmt;

use lowkey_api::ApiError;
use serde::de::value::BorrowedStrDeserializer;
use serde::de::{self, DeserializeOwned, DeserializeSeed, Deserializer, MapAccess, Visitor};
use serde::forward_to_deserialize_any;

use crate::edge::shown;

/// The message with these fields, or why one of them cannot be what its text says.
pub(super) fn message<T: DeserializeOwned>(
    fields: impl IntoIterator<Item = (&'static str, String)>,
) -> Result<T, ApiError> {
    let fields = Fields { rest: fields.into_iter(), next: None };
    T::deserialize(fields).map_err(|Refused(error)| error)
}

/// The refusal of a text that is not what is allowed.
pub(super) fn refuse(field: &'static str, allowed: &str, text: &str) -> ApiError {
    ApiError::invalid(field, format_args!("{allowed}, and is {:?}", shown(text)))
}

/// What a field that is a number must be.
fn allowed_number(field: &str) -> &'static str {
    match field {
        "lease_id" => "must be a whole number from 1",
        "page_size" => "must be a whole number, 1 to 1000",
        _ => "must be a whole number",
    }
}

/// The fields of a message that are given.
struct Fields<I> {
    rest: I,
    /// The field whose name was read, and its text.
    next: Option<(&'static str, String)>,
}

impl<'de, I: Iterator<Item = (&'static str, String)>> Deserializer<'de> for Fields<I> {
    type Error = Refused;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        visitor.visit_map(self)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit
        unit_struct newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

impl<'de, I: Iterator<Item = (&'static str, String)>> MapAccess<'de> for Fields<I> {
    type Error = Refused;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Refused> {
        self.next = self.rest.next();
        let field = self.next.as_ref().map(|(field, _)| BorrowedStrDeserializer::new(field));
        field.map(|field| seed.deserialize(field)).transpose()
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Refused> {
        let (field, text) = self.next.take().unwrap_or_default();
        seed.deserialize(Text(&text)).map_err(|wrong| {
            let allowed = match wrong {
                Wrong::Flag => "must be true or false",
                Wrong::Number => allowed_number(field),
            };
            Refused(refuse(field, allowed, &text))
        })
    }
}

/// A text that a field reads as what it is itself.
struct Text<'a>(&'a str);

impl<'de> Deserializer<'de> for Text<'_> {
    type Error = Wrong;

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        match self.0 {
            "false" | "0" => visitor.visit_bool(false),
            "true" | "1" => visitor.visit_bool(true),
            _ => Err(Wrong::Flag),
        }
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        visitor.visit_str(self.0)
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        visitor.visit_str(self.0)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        visitor.visit_some(self)
    }

    /// Numbers ask so, since in JSON they may stand in quotes. They are of digits alone.
    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        match self.0.bytes().all(|byte| byte.is_ascii_digit()) {
            true => visitor.visit_str(self.0),
            false => Err(Wrong::Number),
        }
    }

    forward_to_deserialize_any! {
        i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char bytes byte_buf unit
        unit_struct newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

/// What a text is not, though its field must be.
#[derive(Debug)]
enum Wrong {
    Flag,
    Number,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no {self:?}")
    }
}

impl std::error::Error for Wrong {}

impl de::Error for Wrong {
    fn custom<T: fmt::Display>(_problem: T) -> Self {
        // Of what is read here, nothing else can fail on its own.
        Self::Number
    }
}

#[derive(Debug)]
struct Refused(ApiError);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl std::error::Error for Refused {}

impl de::Error for Refused {
    fn custom<T: fmt::Display>(problem: T) -> Self {
        Self(ApiError::invalid("body", problem))
    }
}
