//! The columns of a file and how many buffers each has.

use super::Result;
use super::flat::{Flat, List, Table};
use crate::format::ColumnNames;
use crate::visible::visible;

/// Lists in lists in structs: deeper than any table.
const DEPTH_MAX: usize = 32;
/// Columns, those within others included.
const FIELDS_MAX: usize = 1 << 14;

pub(super) struct Schema {
    pub fields: Vec<Field>,
}

pub(super) struct Field {
    pub name: String,
    pub kind: Kind,
    pub children: Vec<Field>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Null,
    Bool,
    Int {
        bytes: usize,
        signed: bool,
    },
    Float {
        bytes: usize,
    },
    /// Texts and bytes; `wide` offsets have eight bytes.
    Text {
        wide: bool,
    },
    List {
        wide: bool,
    },
    FixedList {
        size: usize,
    },
    Struct,
    /// Anything else: passed over, by the number of its buffers. `views`: and of as many more as a batch says.
    Other {
        name: &'static str,
        buffers: usize,
        views: bool,
    },
}

impl Kind {
    /// Buffers of its own, those of its children not counted.
    pub(super) fn buffers(self) -> usize {
        match self {
            Self::Null => 0,
            Self::FixedList { .. } | Self::Struct => 1,
            Self::Bool | Self::Int { .. } | Self::Float { .. } | Self::List { .. } => 2,
            Self::Text { .. } => 3,
            Self::Other { buffers, .. } => buffers,
        }
    }
}

impl Schema {
    pub(super) fn parse(message: &Flat<'_>) -> Result<Self> {
        let schema = message.root()?.table(2)?.ok_or("the schema is empty")?;
        if schema.i16(0)?.unwrap_or(0) != 0 {
            return Err("it was written on a big-endian machine".to_owned());
        }
        let mut left = FIELDS_MAX;
        Ok(Self { fields: fields(schema.list(1, 4)?, DEPTH_MAX, &mut left)? })
    }

    /// Of each column, whether some format may use it; all of them if that is none, so that the message about it can name
    /// the columns.
    pub(super) fn wanted(&self, names: &ColumnNames) -> Vec<bool> {
        let known: Vec<bool> = self.fields.iter().map(|field| names.uses(&field.name)).collect();
        if known.contains(&true) {
            return known;
        }
        self.fields.iter().map(|field| field.unreadable().is_none()).collect()
    }
}

impl Field {
    /// What in it cannot be read.
    pub(super) fn unreadable(&self) -> Option<&'static str> {
        match self.kind {
            Kind::Other { name, .. } => Some(name),
            _ => self.children.iter().find_map(Self::unreadable),
        }
    }
}

fn fields(list: Option<List<'_>>, depth: usize, left: &mut usize) -> Result<Vec<Field>> {
    let Some(list) = list else { return Ok(Vec::new()) };
    if depth == 0 || list.len > *left {
        return Err(format!("it has more than {FIELDS_MAX} columns, or columns nested deeper than {DEPTH_MAX}"));
    }
    *left -= list.len;
    (0..list.len).map(|index| field(&list.table(index)?, depth - 1, left)).collect()
}

fn field(table: &Table<'_>, depth: usize, left: &mut usize) -> Result<Field> {
    let name = table.text(0)?.unwrap_or_default().to_owned();
    // Codes into a dictionary stand in the batch like any number.
    let coded = table.table(4)?.is_some();
    let children = if coded { Vec::new() } else { fields(table.list(5, 4)?, depth, left)? };
    let other = |name, buffers| Kind::Other { name, buffers, views: false };
    let kind = if coded { other("dictionary", 2) } else { kind(table)? };
    let expected = match kind {
        Kind::List { .. } | Kind::FixedList { .. } => Some(1),
        Kind::Null | Kind::Bool | Kind::Int { .. } | Kind::Float { .. } | Kind::Text { .. } => Some(0),
        Kind::Struct | Kind::Other { .. } => None,
    };
    if expected.is_some_and(|expected| expected != children.len()) {
        return Err(format!("column `{}` has {} columns within", visible(&name), children.len()));
    }
    Ok(Field { name, kind, children })
}

fn kind(table: &Table<'_>) -> Result<Kind> {
    let details = table.table(3)?;
    let i32 = |number: usize| details.map_or(Ok(None), |details| details.i32(number));
    let i16 = |number: usize| details.map_or(Ok(None), |details| details.i16(number));
    let other = |name, buffers| Kind::Other { name, buffers, views: false };
    Ok(match table.u8(2)?.unwrap_or(0) {
        1 => Kind::Null,
        2 => {
            let signed = details.map_or(Ok(None), |details| details.u8(1))?.unwrap_or(0) != 0;
            match i32(0)?.unwrap_or(0) {
                bits @ (8 | 16 | 32 | 64) => Kind::Int { bytes: bits as usize / 8, signed },
                bits => return Err(format!("it has integers of {bits} bits")),
            }
        }
        3 => match i16(0)?.unwrap_or(0) {
            1 => Kind::Float { bytes: 4 },
            2 => Kind::Float { bytes: 8 },
            _ => other("float16", 2),
        },
        4 | 5 => Kind::Text { wide: false },
        19 | 20 => Kind::Text { wide: true },
        6 => Kind::Bool,
        12 => Kind::List { wide: false },
        21 => Kind::List { wide: true },
        13 => Kind::Struct,
        16 => {
            let size = i32(0)?.and_then(|size| usize::try_from(size).ok());
            Kind::FixedList { size: size.ok_or("a list of a negative fixed size")? }
        }
        7 => other("decimal", 2),
        8 => other("date", 2),
        9 => other("time", 2),
        10 => other("timestamp", 2),
        11 => other("interval", 2),
        14 => other("union", if i16(0)?.unwrap_or(0) == 0 { 1 } else { 2 }),
        15 => other("fixed-size binary", 2),
        17 => other("map", 2),
        18 => other("duration", 2),
        22 => other("run-end encoded", 0),
        23 => Kind::Other { name: "binary view", buffers: 2, views: true },
        24 => Kind::Other { name: "string view", buffers: 2, views: true },
        25 | 26 => other("list view", 3),
        unknown => return Err(format!("it has columns of the unknown type {unknown}")),
    })
}
