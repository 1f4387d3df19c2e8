//! Builder files of OpenStack Swift: the pickled dictionary of `swift-ring-builder`.
//!
//! Both programs can work on the same cluster's builders alternately. Keys: `part_power`,
//! `next_part_power`, `replicas`, `min_part_hours`, `parts`, `devs` (dictionaries with the ring's
//! keys, `parts` and `parts_wanted`), `devs_changed`, `dev_id_bytes`, `version`, `overload`,
//! `_replica2part2dev` (arrays), `_last_part_moves_epoch`, `_last_part_moves` (array),
//! `_last_part_gather_start`, `_dispersion_graph` (a cache, written empty), `dispersion`,
//! `_remove_devs`, `id`.

use crate::builder::pickle::{Pickle, PickleWriter, Value};
use crate::builder::{BuilderDevice, BuilderError, RingBuilder};
use crate::device::Device;

/// Parses a pickled builder; the caller checks ids and counts as for any builder file.
pub(super) fn read(bytes: &[u8]) -> Result<RingBuilder, BuilderError> {
    let pickle = Pickle::read(bytes).map_err(BuilderError::PythonPickle)?;
    let fields = Fields {
        pickle: &pickle,
        dict: pickle.root,
    };
    let mut builder = RingBuilder::new(
        fields.number("part_power")?,
        fields.float("replicas")?,
        fields.number("min_part_hours")?,
    )?;
    builder.next_part_power = fields.optional("next_part_power")?;
    builder.devs_changed = fields.get("devs_changed") == Value::Bool(true);
    builder.version = fields.number("version")?;
    builder.set_overload(fields.float_or("overload", 0.0)?)?;
    builder.last_part_moves_epoch = fields.optional("_last_part_moves_epoch")?.unwrap_or(0);
    builder.last_part_gather_start =
        fields.number::<u64>("_last_part_gather_start")? % builder.parts();
    builder.last_part_moves = fields.numbers("_last_part_moves")?;
    builder.last_part_moves.truncate(builder.parts() as usize);
    builder.dispersion = match fields.get("dispersion") {
        Value::None => None,
        _ => Some(fields.float("dispersion")?),
    };
    builder.id = pickle.text(fields.get("id")).map(str::to_owned);
    for dev in pickle.list(fields.get("devs")).unwrap_or_default() {
        builder.devs.push(match dev {
            Value::None => None,
            dev => Some(device(&pickle, *dev)?),
        });
    }
    for dev in pickle.list(fields.get("_remove_devs")).unwrap_or_default() {
        let dev = Fields {
            pickle: &pickle,
            dict: *dev,
        };
        let id: usize = dev.number("id")?;
        if let Some(Some(dev)) = builder.devs.get_mut(id) {
            dev.removing = true;
        }
    }
    if let Some(rows) = pickle.list(fields.get("_replica2part2dev")) {
        let rows = rows.iter().map(|row| numbers(&pickle, *row));
        let rows = rows.collect::<Option<Vec<Vec<u32>>>>();
        builder.table = Some(rows.ok_or_else(|| field_error("_replica2part2dev"))?);
    }
    let bytes_needed = builder.dev_id_bytes().max(2);
    builder.table_id_bytes = fields.optional("dev_id_bytes")?.unwrap_or(bytes_needed);
    Ok(builder)
}

fn device(pickle: &Pickle, dict: Value) -> Result<BuilderDevice, BuilderError> {
    let fields = Fields { pickle, dict };
    let ip = fields.text("ip")?;
    let port = fields.number("port")?;
    let device = Device {
        id: fields.number("id")?,
        region: fields.optional("region")?.unwrap_or(1),
        zone: fields.number("zone")?,
        weight: fields.float("weight")?,
        replication_ip: fields.text("replication_ip").unwrap_or_else(|_| ip.clone()),
        replication_port: fields.optional("replication_port")?.unwrap_or(port),
        ip,
        port,
        device: fields.text("device")?,
        meta: fields.text("meta").unwrap_or_default(),
    };
    Ok(BuilderDevice {
        device,
        parts: fields.optional("parts")?.unwrap_or(0),
        removing: false,
    })
}

fn field_error(field: &str) -> BuilderError {
    BuilderError::PythonPickle(format!("field {field} is missing or not what Swift writes"))
}

fn numbers<T: TryFrom<i64>>(pickle: &Pickle, list: Value) -> Option<Vec<T>> {
    let items = pickle.list(list)?.iter();
    let number = |item: &Value| match item {
        Value::Int(number) => T::try_from(*number).ok(),
        _ => None,
    };
    items.map(number).collect()
}

/// The entries of one dictionary.
struct Fields<'p> {
    pickle: &'p Pickle,
    dict: Value,
}

impl Fields<'_> {
    fn get(&self, field: &str) -> Value {
        self.pickle.get(self.dict, field).unwrap_or(Value::None)
    }

    fn optional<T: TryFrom<i64>>(&self, field: &str) -> Result<Option<T>, BuilderError> {
        match self.get(field) {
            Value::None => Ok(None),
            Value::Int(number) => match T::try_from(number) {
                Ok(number) => Ok(Some(number)),
                Err(_) => Err(field_error(field)),
            },
            _ => Err(field_error(field)),
        }
    }

    fn number<T: TryFrom<i64>>(&self, field: &str) -> Result<T, BuilderError> {
        self.optional(field)?.ok_or_else(|| field_error(field))
    }

    fn float(&self, field: &str) -> Result<f64, BuilderError> {
        match self.get(field) {
            Value::Float(number) => Ok(number),
            Value::Int(number) => Ok(number as f64),
            _ => Err(field_error(field)),
        }
    }

    fn float_or(&self, field: &str, default: f64) -> Result<f64, BuilderError> {
        match self.get(field) {
            Value::None => Ok(default),
            _ => self.float(field),
        }
    }

    fn text(&self, field: &str) -> Result<String, BuilderError> {
        let text = self.pickle.text(self.get(field)).map(str::to_owned);
        text.ok_or_else(|| field_error(field))
    }

    /// A list of numbers; empty if absent.
    fn numbers<T: TryFrom<i64>>(&self, field: &str) -> Result<Vec<T>, BuilderError> {
        match self.get(field) {
            Value::None => Ok(Vec::new()),
            list => numbers(self.pickle, list).ok_or_else(|| field_error(field)),
        }
    }
}

/// Encodes a pickled builder.
pub(super) fn write(builder: &RingBuilder) -> Vec<u8> {
    let mut pickle = PickleWriter::new();
    pickle.dict(|dict| {
        let int = |dict: &mut PickleWriter, key: &str, value: u64| {
            dict.text(key);
            dict.int(value as i64);
        };
        int(dict, "part_power", u64::from(builder.part_power));
        int(dict, "min_part_hours", u64::from(builder.min_part_hours));
        int(dict, "parts", builder.parts());
        int(dict, "dev_id_bytes", u64::from(builder.dev_id_bytes()));
        int(dict, "version", builder.version);
        int(
            dict,
            "_last_part_moves_epoch",
            builder.last_part_moves_epoch,
        );
        int(
            dict,
            "_last_part_gather_start",
            builder.last_part_gather_start,
        );
        dict.text("next_part_power");
        match builder.next_part_power {
            Some(power) => dict.int(i64::from(power)),
            None => dict.none(),
        }
        dict.text("replicas");
        dict.float(builder.replicas);
        dict.text("overload");
        dict.float(builder.overload);
        dict.text("dispersion");
        match builder.dispersion {
            Some(dispersion) => dict.float(dispersion),
            None => dict.none(),
        }
        dict.text("devs_changed");
        dict.bool(builder.devs_changed);
        dict.text("id");
        match &builder.id {
            Some(id) => dict.text(id),
            None => dict.none(),
        }
        dict.text("_dispersion_graph");
        dict.dict(|_| {});
        dict.text("devs");
        dict.list(|list| {
            for dev in &builder.devs {
                match dev {
                    Some(dev) => write_device(list, dev),
                    None => list.none(),
                }
            }
        });
        dict.text("_remove_devs");
        dict.list(|list| {
            let removing = builder.devices().filter(|dev| dev.removing);
            removing.for_each(|dev| write_device(list, dev));
        });
        write_tables(dict, builder);
    });
    pickle.finish()
}

fn write_tables(dict: &mut PickleWriter, builder: &RingBuilder) {
    dict.text("_last_part_moves");
    let unknown = builder.parts() as usize - builder.last_part_moves.len();
    let ages = builder.last_part_moves.iter().copied();
    dict.array(
        "B",
        ages.chain(std::iter::repeat_n(0, unknown)).map(i64::from),
    );
    dict.text("_replica2part2dev");
    let typecode = if builder.dev_id_bytes() <= 2 {
        "H"
    } else {
        "I"
    };
    match &builder.table {
        None => dict.none(),
        Some(rows) => dict.list(|list| {
            for row in rows {
                list.array(typecode, row.iter().map(|id| i64::from(*id)));
            }
        }),
    }
}

fn write_device(out: &mut PickleWriter, dev: &BuilderDevice) {
    let device = &dev.device;
    out.dict(|dict| {
        for (key, value) in [
            ("id", i64::from(device.id)),
            ("region", i64::from(device.region)),
            ("zone", i64::from(device.zone)),
            ("port", i64::from(device.port)),
            ("replication_port", i64::from(device.replication_port)),
            ("parts", dev.parts as i64),
        ] {
            dict.text(key);
            dict.int(value);
        }
        for (key, value) in [
            ("ip", &device.ip),
            ("replication_ip", &device.replication_ip),
            ("device", &device.device),
            ("meta", &device.meta),
        ] {
            dict.text(key);
            dict.text(value);
        }
        dict.text("weight");
        dict.float(device.weight);
    });
}
