//! Schemas of a program's tables. Fields are in wire order. `_type` fields are union tags.

crate::flat::schema! {
    program {
        version, execution_plan, constant_buffer, backend_delegate_data, segments, constant_segment, mutable_data_segments,
        named_data,
    }
    plan {
        name, container_meta_type, values, inputs, outputs, chains, operators, delegates, non_const_buffer_sizes,
        non_const_buffer_device,
    }
    container { encoded_inp_str, encoded_out_str }
    buffer_device { buffer_idx, device_type, device_index }
    evalue { val_type, val }
    /// Scalar values, with `int_val`, `bool_val`, `double_val` or `string_val`.
    scalar { val }
    /// Lists of all types.
    list { items }
    tensor {
        scalar_type, storage_offset, sizes, dim_order, requires_grad, data_buffer_idx, allocation_info, layout, shape_dynamism,
        extra_tensor_info,
    }
    extra { mutable_data_segments_idx, fully_qualified_name, location, device_type, device_index }
    allocation { memory_id, memory_offset_low, memory_offset_high }
    operator { name, overload }
    chain { inputs, outputs, instructions, stacktrace }
    instruction { instr_args_type, instr_args }
    kernel_call { op_index, args }
    delegate_call { delegate_index, args }
    move_call { move_from, move_to }
    jump_false { cond_value_index, destination_instruction }
    free_call { value_index }
    delegate { id, processed, compile_specs }
    delegate_data { location, index }
    compile_spec { key, value }
    buffer { storage }
    inline_data { data }
    subsegment { segment_index, offsets }
}

/// Union tags of values.
pub(super) mod value_tag {
    pub(crate) const NULL: u8 = 1;
    pub(crate) const INT: u8 = 2;
    pub(crate) const BOOL: u8 = 3;
    pub(crate) const DOUBLE: u8 = 4;
    pub(crate) const TENSOR: u8 = 5;
    pub(crate) const STRING: u8 = 6;
    pub(crate) const INT_LIST: u8 = 7;
    pub(crate) const DOUBLE_LIST: u8 = 8;
    pub(crate) const BOOL_LIST: u8 = 9;
    pub(crate) const TENSOR_LIST: u8 = 10;
    pub(crate) const OPTIONAL_TENSOR_LIST: u8 = 11;
}

/// Union tags of instructions.
pub(super) mod instruction_tag {
    pub(crate) const KERNEL_CALL: u8 = 1;
    pub(crate) const DELEGATE_CALL: u8 = 2;
    pub(crate) const MOVE_CALL: u8 = 3;
    pub(crate) const JUMP_FALSE: u8 = 4;
    pub(crate) const FREE_CALL: u8 = 5;
}
