//! Decoder of protobuf bodies into JSON. The typed clients of client-go always write protobuf.
//!
//! `fields.txt` has the messages and fields of `generated.proto` of `k8s.io/api` 1.36: number, name, type. `drop` marks
//! fields that Go omits from JSON when they are zero, but writes in protobuf. Pods, nodes and namespaces are not
//! supported: agents write them as JSON or not at all.

use std::{collections::HashMap, sync::LazyLock};

use jiff::Timestamp;
use serde_json::{Map, Value, json};

/// Prefix of every protobuf body (`k8s.io/apimachinery`, `serializer/protobuf`).
const MAGIC: &[u8] = b"k8s\0";

static MESSAGES: LazyLock<HashMap<&str, Message>> = LazyLock::new(messages);

/// Fields of a message by number.
type Message = HashMap<u64, Field>;

#[derive(Clone, Copy, Debug)]
struct Field {
    name: &'static str,
    cardinality: Cardinality,
    value_type: &'static str,
    drops_zero: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cardinality {
    Singular,
    Repeated,
    Map,
}

/// Value of a field in the wire format.
#[derive(Clone, Copy, Debug)]
enum WireValue<'a> {
    Varint(u64),
    Bytes(&'a [u8]),
}

/// Decodes the object in a body.
pub(crate) fn decode(body: &[u8]) -> Result<Value, String> {
    let envelope = body.strip_prefix(MAGIC).ok_or("the body has no protobuf prefix")?;
    let (mut version, mut kind, mut raw) = (String::new(), String::new(), &[][..]);
    for (number, value) in fields(envelope)? {
        match (number, value) {
            (1, WireValue::Bytes(bytes)) => {
                for (number, value) in fields(bytes)? {
                    match number {
                        1 => version = value.text(),
                        2 => kind = value.text(),
                        _ => {}
                    }
                }
            }
            (2, WireValue::Bytes(bytes)) => raw = bytes,
            _ => {}
        }
    }
    let package = match (kind.as_str(), version.as_str()) {
        // `DeleteOptions` have the version of the deleted object.
        ("DeleteOptions", _) => "meta",
        (_, "resource.k8s.io/v1") => "resource",
        (_, "coordination.k8s.io/v1") => "coordination",
        (_, "events.k8s.io/v1") => "events",
        _ => "core",
    };
    let name = format!("{package}.{kind}");
    let mut object = message(&name, raw)?;
    object["apiVersion"] = version.into();
    object["kind"] = kind.into();
    Ok(object)
}

fn messages() -> HashMap<&'static str, Message> {
    let (mut messages, mut name) = (HashMap::new(), "");
    for line in include_str!("protobuf/fields.txt").lines() {
        let words: Vec<_> = line.split_whitespace().collect();
        match words.as_slice() {
            [message] => name = *message,
            [number, field, field_type @ ..] => {
                let drops_zero = field_type.last() == Some(&"drop");
                let (cardinality, value_type) = match field_type {
                    ["list", value_type, ..] => (Cardinality::Repeated, *value_type),
                    ["map", value_type, ..] => (Cardinality::Map, *value_type),
                    [value_type, ..] => (Cardinality::Singular, *value_type),
                    [] => continue,
                };
                let field = Field { name: field, cardinality, value_type, drops_zero };
                let number = number.parse().expect("a number, as the file says");
                messages.entry(name).or_insert_with(Message::new).insert(number, field);
            }
            [] => {}
        }
    }
    messages
}

fn message(name: &str, bytes: &[u8]) -> Result<Value, String> {
    let message =
        MESSAGES.get(name).ok_or_else(|| format!("{name} is not supported in protobuf"))?;
    let mut object = Map::new();
    for (number, value) in fields(bytes)? {
        // Skip fields that are newer than `fields.txt`.
        let Some(field) = message.get(&number) else { continue };
        match field.cardinality {
            Cardinality::Singular => {
                let value = field.value(value)?;
                if !(field.drops_zero && is_zero(&value)) {
                    object.insert(field.name.to_owned(), value);
                }
            }
            Cardinality::Repeated => {
                let value = field.value(value)?;
                let list = object.entry(field.name).or_insert_with(|| json!([]));
                list.as_array_mut().into_iter().for_each(|list| list.push(value.clone()));
            }
            Cardinality::Map => {
                let (key, value) = field.entry(value)?;
                object.entry(field.name).or_insert_with(|| json!({}))[key] = value;
            }
        }
    }
    Ok(Value::Object(object))
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(value) => value.as_i64() == Some(0),
        Value::String(value) => value.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.values().all(is_zero),
    }
}

/// Fields of a message in order.
fn fields(mut bytes: &[u8]) -> Result<Vec<(u64, WireValue<'_>)>, String> {
    let truncated = || "the body ends within a field".to_owned();
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes).ok_or_else(truncated)?;
        let value = match tag & 7 {
            0 => WireValue::Varint(varint(&mut bytes).ok_or_else(truncated)?),
            2 => {
                let length = varint(&mut bytes).and_then(|length| usize::try_from(length).ok());
                let length = length.ok_or_else(truncated)?;
                let (value, tail) = bytes.split_at_checked(length).ok_or_else(truncated)?;
                bytes = tail;
                WireValue::Bytes(value)
            }
            wire_type => return Err(format!("no field of Kubernetes has wire type {wire_type}")),
        };
        fields.push((tag >> 3, value));
    }
    Ok(fields)
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (byte, tail) = bytes.split_first()?;
        *bytes = tail;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

// === impl Field ===

impl Field {
    fn value(&self, wire: WireValue<'_>) -> Result<Value, String> {
        Ok(match self.value_type {
            "bool" => (wire.number() != 0).into(),
            "int" => wire.number().cast_signed().into(),
            "text" => wire.text().into(),
            "time" => time(wire.bytes())?,
            "quantity" => match fields(wire.bytes())?.first() {
                Some((1, text)) => text.text().into(),
                _ => "0".into(),
            },
            "raw" => match fields(wire.bytes())?.first() {
                Some((1, raw)) => serde_json::from_slice(raw.bytes()).unwrap_or_default(),
                _ => Value::Null,
            },
            name => message(name, wire.bytes())?,
        })
    }

    /// Key and value of a map entry.
    fn entry(&self, wire: WireValue<'_>) -> Result<(String, Value), String> {
        let (mut key, mut value) = (String::new(), None);
        for (number, wire) in fields(wire.bytes())? {
            match number {
                1 => key = wire.text(),
                _ => value = Some(self.value(wire)?),
            }
        }
        let value = value.map_or_else(|| self.value(WireValue::Bytes(&[])), Ok)?;
        Ok((key, value))
    }
}

/// Time from seconds and nanoseconds. Absent seconds are Go's zero time, which is null in JSON.
fn time(bytes: &[u8]) -> Result<Value, String> {
    let (mut seconds, mut nanos) = (None, 0);
    for (number, value) in fields(bytes)? {
        match number {
            1 => seconds = Some(value.number().cast_signed()),
            _ => nanos = i32::try_from(value.number()).unwrap_or_default(),
        }
    }
    let Some(seconds) = seconds else { return Ok(Value::Null) };
    let time = Timestamp::new(seconds, nanos).map_err(|error| error.to_string())?;
    Ok(time.to_string().into())
}

// === impl WireValue ===

impl<'a> WireValue<'a> {
    fn number(self) -> u64 {
        match self {
            Self::Varint(number) => number,
            Self::Bytes(_) => 0,
        }
    }

    fn bytes(self) -> &'a [u8] {
        match self {
            Self::Varint(_) => &[],
            Self::Bytes(bytes) => bytes,
        }
    }

    fn text(self) -> String {
        String::from_utf8_lossy(self.bytes()).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The slice below, as the serializer of `k8s.io/apimachinery` 1.36 encodes it.
    const SLICE: &str = "6b3873000a230a127265736f757263652e6b38732e696f2f7631120d5265736f75726365536c696365126f0a\
        230a0012036e312d1a0022002a003200380042080880e2cfaa0610005a060a016112016212480a0d642e6578616d706c652e636f6d\
        12070a0170100018011a026e31322a0a056770752d30120b0a05696e646578120210001a120a066d656d6f727912080a060a043830\
        476960001a002200";

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: Vec<_> = hex.chars().filter_map(|digit| digit.to_digit(16)).collect();
        let pair = |pair: &[u32]| u8::try_from(pair[0] * 16 + pair[1]).expect("two digits");
        digits.chunks(2).map(pair).collect()
    }

    #[test]
    fn a_protobuf_body_decodes_to_the_json_that_go_writes() {
        let expected = json!({
            "kind": "ResourceSlice", "apiVersion": "resource.k8s.io/v1",
            "metadata": {
                "generateName": "n1-", "creationTimestamp": "2023-11-14T22:13:20Z", "labels": {"a": "b"},
            },
            "spec": {
                "driver": "d.example.com", "nodeName": "n1",
                "pool": {"name": "p", "generation": 0, "resourceSliceCount": 1},
                "devices": [{
                    "name": "gpu-0", "attributes": {"index": {"int": 0}},
                    "capacity": {"memory": {"value": "80Gi"}}, "allowMultipleAllocations": false,
                }],
            },
        });
        assert_eq!(decode(&bytes(SLICE)), Ok(expected));
    }

    #[test]
    fn a_truncated_body_or_an_unsupported_kind_is_refused() {
        let slice = bytes(SLICE);
        for length in 0..slice.len() {
            // Any result is valid; the test fails only on a panic.
            let _ = decode(&slice[..length]);
        }
        let pod = b"k8s\0\x0a\x09\x0a\x02v1\x12\x03Pod";
        assert_eq!(decode(pod), Err("core.Pod is not supported in protobuf".to_owned()));
    }
}
