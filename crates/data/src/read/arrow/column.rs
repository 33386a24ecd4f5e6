//! A column of a batch as buffers, and single values of it.

use std::ops::Range;

use serde_json::{Map, Value};

use super::schema::Kind;

/// What holding one value costs a row's budget, whatever it says: lists of nothing must not fill the memory.
const VALUE_BYTES: usize = 32;

/// What is wrong with a row, or with the rest of the batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    NotUtf8,
    TooLarge,
    Damaged(&'static str),
}

/// Buffers are as long as the rows need; what offsets point at is checked when it is read.
#[derive(Debug)]
pub(super) struct Column {
    kind: Kind,
    rows: usize,
    /// A bit per row; empty if every row has a value.
    validity: Vec<u8>,
    /// Numbers, bits or offsets.
    data: Vec<u8>,
    text: Vec<u8>,
    children: Vec<(String, Column)>,
}

impl Column {
    /// `buffers` are as many as the kind has.
    pub(super) fn new(
        kind: Kind,
        rows: usize,
        buffers: Vec<Vec<u8>>,
        children: Vec<(String, Column)>,
    ) -> super::Result<Self> {
        let mut buffers = buffers.into_iter();
        let mut next = || buffers.next().unwrap_or_default();
        let (validity, data, text) = (next(), next(), next());
        let offsets = |wide: bool| rows.checked_add(1)?.checked_mul(if wide { 8 } else { 4 });
        let needed = match kind {
            Kind::Null | Kind::Struct | Kind::FixedList { .. } => Some(0),
            Kind::Bool => Some(rows.div_ceil(8)),
            Kind::Int { bytes, .. } | Kind::Float { bytes } => rows.checked_mul(bytes),
            Kind::Text { wide } | Kind::List { wide } => offsets(wide),
            Kind::Other { name, .. } => return Err(format!("type {name} is not read")),
        };
        // A column of no rows may come without offsets.
        let enough = rows == 0 || needed.is_some_and(|needed| needed <= data.len());
        let child_rows = match kind {
            Kind::FixedList { size } => rows.checked_mul(size),
            Kind::Struct => Some(rows),
            _ => Some(0),
        };
        let fits = child_rows.is_some_and(|needed| children.iter().all(|(_, child)| child.rows >= needed));
        if !enough || !fits || (!validity.is_empty() && validity.len() < rows.div_ceil(8)) {
            return Err("its buffers are too short for its rows".to_owned());
        }
        Ok(Self { kind, rows, validity, data, text, children })
    }

    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    fn number<const N: usize>(&self, index: usize) -> Result<[u8; N], Fault> {
        let bytes = self.data.get(index * N..).and_then(<[u8]>::first_chunk);
        bytes.copied().ok_or(Fault::Damaged("a buffer ends early"))
    }

    /// From where to where a row's part of what lies behind the offsets goes.
    fn range(&self, row: usize, wide: bool) -> Result<Range<usize>, Fault> {
        let offset = |index: usize| -> Result<usize, Fault> {
            let offset = if wide {
                i64::from_le_bytes(self.number(index)?)
            } else {
                i32::from_le_bytes(self.number(index)?).into()
            };
            usize::try_from(offset).map_err(|_| Fault::Damaged("an offset is negative"))
        };
        Ok(offset(row)?..offset(row + 1)?)
    }

    /// `budget`: bytes that the row may still take.
    pub(super) fn value(&self, row: usize, budget: &mut usize) -> Result<Value, Fault> {
        spend(budget, VALUE_BYTES)?;
        if row >= self.rows {
            return Err(Fault::Damaged("a list reaches behind its column"));
        }
        let bit = |bits: &[u8]| bits.get(row / 8).is_some_and(|byte| byte >> (row % 8) & 1 == 1);
        if !self.validity.is_empty() && !bit(&self.validity) {
            return Ok(Value::Null);
        }
        match self.kind {
            Kind::Null | Kind::Other { .. } => Ok(Value::Null),
            Kind::Bool => Ok(Value::Bool(bit(&self.data))),
            Kind::Int { bytes, signed } => self.integer(row, bytes, signed),
            Kind::Float { bytes: 4 } => Ok(Value::from(f64::from(f32::from_le_bytes(self.number(row)?)))),
            Kind::Float { .. } => Ok(Value::from(f64::from_le_bytes(self.number(row)?))),
            Kind::Text { wide } => {
                let text =
                    self.text.get(self.range(row, wide)?).ok_or(Fault::Damaged("a text ends behind its buffer"))?;
                spend(budget, text.len())?;
                std::str::from_utf8(text).map(Value::from).map_err(|_| Fault::NotUtf8)
            }
            Kind::List { wide } => self.list(self.range(row, wide)?, budget),
            Kind::FixedList { size } => self.list(row * size..(row + 1) * size, budget),
            Kind::Struct => {
                let field = |(name, child): &(String, Self)| {
                    spend(budget, name.len())?;
                    Ok((name.clone(), child.value(row, budget)?))
                };
                Ok(Value::Object(self.children.iter().map(field).collect::<Result<Map<_, _>, _>>()?))
            }
        }
    }

    fn list(&self, rows: Range<usize>, budget: &mut usize) -> Result<Value, Fault> {
        let [(_, child)] = &self.children[..] else { return Err(Fault::Damaged("a list has no column within")) };
        if rows.end < rows.start || rows.end > child.rows {
            return Err(Fault::Damaged("a list reaches behind its column"));
        }
        Ok(Value::Array(rows.map(|row| child.value(row, budget)).collect::<Result<_, _>>()?))
    }

    fn integer(&self, row: usize, bytes: usize, signed: bool) -> Result<Value, Fault> {
        Ok(match (bytes, signed) {
            (1, true) => i8::from_le_bytes(self.number(row)?).into(),
            (1, false) => u8::from_le_bytes(self.number(row)?).into(),
            (2, true) => i16::from_le_bytes(self.number(row)?).into(),
            (2, false) => u16::from_le_bytes(self.number(row)?).into(),
            (4, true) => i32::from_le_bytes(self.number(row)?).into(),
            (4, false) => u32::from_le_bytes(self.number(row)?).into(),
            (_, true) => i64::from_le_bytes(self.number(row)?).into(),
            (_, false) => u64::from_le_bytes(self.number(row)?).into(),
        })
    }
}

fn spend(budget: &mut usize, bytes: usize) -> Result<(), Fault> {
    *budget = budget.checked_sub(bytes).ok_or(Fault::TooLarge)?;
    Ok(())
}
