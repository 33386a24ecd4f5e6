//! The columns of one row group: strings straight from their pages, everything else through the row API.

use std::sync::Arc;

use parquet::basic::{ConvertedType, Repetition, Type as PhysicalType};
use parquet::column::reader::{ColumnReaderImpl, get_typed_column_reader};
use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::errors::{ParquetError, Result};
use parquet::file::reader::RowGroupReader;
use parquet::record::reader::{ReaderIter, TreeBuilder};
use parquet::schema::types::{SchemaDescriptor, Type, TypePtr};
use serde_json::{Map, Value};

use crate::format::ColumnNames;

/// Rows decoded at a time hold about this much, and never less than a page.
const BATCH_BYTES: u64 = 1 << 20;
const BATCH_ROWS_MAX: u64 = 1024;

pub(super) struct Columns {
    strings: Vec<StringColumn>,
    nested: Option<ReaderIter>,
    rows_left: u64,
    batch_rows: usize,
}

/// What is wrong with one row; the next one is not affected.
pub(super) enum RowFault {
    NotUtf8,
    TooLarge { bytes: u64 },
}

struct StringColumn {
    name: String,
    reader: ColumnReaderImpl<ByteArrayType>,
    optional: bool,
    values: std::vec::IntoIter<ByteArray>,
    /// Whether each row of the batch has a value.
    present: std::vec::IntoIter<i16>,
}

impl Columns {
    pub(super) fn open(group: &dyn RowGroupReader, schema: &SchemaDescriptor, names: &ColumnNames) -> Result<Self> {
        let metadata = group.metadata();
        let rows = metadata.num_rows().max(0).cast_unsigned();
        let bytes: i64 =
            metadata.columns().iter().map(|column| column.uncompressed_size()).fold(0, i64::saturating_add);
        let row_bytes = bytes.max(0).cast_unsigned() / rows.max(1);
        let batch_rows = (BATCH_BYTES / row_bytes.max(1)).clamp(1, BATCH_ROWS_MAX) as usize;
        let wanted = projection(schema.root_schema(), names);
        let (flat, nested): (Vec<TypePtr>, Vec<TypePtr>) = wanted.into_iter().partition(|field| is_string(field));
        let strings = flat.iter().map(|field| StringColumn::open(group, field)).collect::<Result<_>>()?;
        let nested = (!nested.is_empty()).then(|| {
            let root = Type::group_type_builder(schema.root_schema().name()).with_fields(nested).build()?;
            let schema = Arc::new(SchemaDescriptor::new(Arc::new(root)));
            TreeBuilder::new().with_batch_size(batch_rows).as_iter(schema, group)
        });
        Ok(Self { strings, nested: nested.transpose()?, rows_left: rows, batch_rows })
    }

    pub(super) fn rows_left(&self) -> u64 {
        self.rows_left
    }

    pub(super) fn skip(&mut self, rows: u64) -> Result<()> {
        for column in &mut self.strings {
            let skipped = column.reader.skip_records(rows as usize)?;
            if skipped as u64 != rows {
                return Err(short(&column.name));
            }
        }
        if let Some(nested) = &mut self.nested {
            for _ in 0..rows {
                nested.next().ok_or_else(|| short("a nested column"))??;
            }
        }
        self.rows_left -= rows;
        Ok(())
    }

    /// The next row. Only to be called while `rows_left` is not 0.
    pub(super) fn next_row(&mut self, bytes_max: u64) -> Result<std::result::Result<Map<String, Value>, RowFault>> {
        let mut columns = Map::new();
        let (mut bytes, mut fault) = (0, None);
        for column in &mut self.strings {
            let value = column.next(self.batch_rows.min(self.rows_left as usize))?;
            bytes += value.as_ref().map_or(0, |value| value.len() as u64);
            if bytes > bytes_max {
                fault = Some(RowFault::TooLarge { bytes });
            }
            // Every column moves on by one row, whatever is wrong with this one.
            if fault.is_some() {
                continue;
            }
            let value = match value.map(|value| std::str::from_utf8(value.data()).map(str::to_owned)) {
                None => Value::Null,
                Some(Ok(text)) => Value::String(text),
                Some(Err(_)) => {
                    fault = Some(RowFault::NotUtf8);
                    continue;
                }
            };
            columns.insert(column.name.clone(), value);
        }
        if let Some(nested) = &mut self.nested {
            let row = nested.next().ok_or_else(|| short("a nested column"))??;
            let row = row.to_json_value();
            bytes += text_bytes(&row);
            if bytes > bytes_max {
                fault = Some(RowFault::TooLarge { bytes });
            }
            if let Value::Object(more) = row {
                columns.extend(more);
            }
        }
        self.rows_left -= 1;
        Ok(fault.map_or(Ok(columns), Err))
    }
}

impl StringColumn {
    fn open(group: &dyn RowGroupReader, field: &TypePtr) -> Result<Self> {
        let columns = group.metadata().columns();
        let is_it = |path: &[String]| matches!(path, [name] if name == field.name());
        let index = columns.iter().position(|column| is_it(column.column_path().parts()));
        let index = index.ok_or_else(|| short(field.name()))?;
        let descriptor = columns[index].column_descr();
        if descriptor.physical_type() != PhysicalType::BYTE_ARRAY {
            return Err(ParquetError::General(format!("`{}` is not of the type its schema says", field.name())));
        }
        let optional = descriptor.max_def_level() > 0;
        let reader = get_typed_column_reader::<ByteArrayType>(group.get_column_reader(index)?);
        let (values, present) = (Vec::new().into_iter(), Vec::new().into_iter());
        Ok(Self { name: field.name().to_owned(), reader, optional, values, present })
    }

    fn next(&mut self, batch_rows: usize) -> Result<Option<ByteArray>> {
        if self.present.len() == 0 {
            self.fill(batch_rows)?;
        }
        match self.present.next() {
            Some(0) => Ok(None),
            Some(_) => self.values.next().map(Some).ok_or_else(|| short(&self.name)),
            None => Err(short(&self.name)),
        }
    }

    fn fill(&mut self, batch_rows: usize) -> Result<()> {
        let (mut values, mut present) = (Vec::new(), Vec::new());
        let levels = if self.optional { Some(&mut present) } else { None };
        let (rows, _, _) = self.reader.read_records(batch_rows, levels, None, &mut values)?;
        if !self.optional {
            present = vec![1; rows];
        }
        (self.values, self.present) = (values.into_iter(), present.into_iter());
        Ok(())
    }
}

fn text_bytes(value: &Value) -> u64 {
    match value {
        Value::String(text) => text.len() as u64,
        Value::Array(list) => list.iter().map(text_bytes).sum(),
        Value::Object(columns) => columns.values().map(text_bytes).sum(),
        _ => 0,
    }
}

fn short(column: &str) -> ParquetError {
    ParquetError::General(format!("`{column}` has fewer values than the row group has rows"))
}

/// What some shape may use; everything if that is nothing, so that the message about it can name the columns.
fn projection(root: &Type, names: &ColumnNames) -> Vec<TypePtr> {
    let fields = root.get_fields();
    let known: Vec<TypePtr> = fields.iter().filter(|field| names.uses(field.name())).cloned().collect();
    if known.is_empty() { fields.to_vec() } else { known }
}

/// The leaves of the columns that are read.
pub(super) fn leaves(schema: &SchemaDescriptor, names: &ColumnNames) -> Vec<usize> {
    let wanted = projection(schema.root_schema(), names);
    let is_wanted = |leaf: &usize| wanted.iter().any(|field| field.name() == schema.get_column_root(*leaf).name());
    (0..schema.num_columns()).filter(is_wanted).collect()
}

/// Bytes without an annotation are taken for text too: that is how some writers store strings.
fn is_string(field: &Type) -> bool {
    field.is_primitive()
        && field.get_physical_type() == PhysicalType::BYTE_ARRAY
        && field.get_basic_info().repetition() != Repetition::REPEATED
        && matches!(
            field.get_basic_info().converted_type(),
            ConvertedType::UTF8 | ConvertedType::JSON | ConvertedType::ENUM | ConvertedType::NONE
        )
}
