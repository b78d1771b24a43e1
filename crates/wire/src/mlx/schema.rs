//! Schemas of the tables around the nodes. Fields are in wire order.

crate::flat::schema! {
    graph {
        version, num_constant_tensors, num_input_tensors, num_output_tensors, num_mutable_buffer_tensors, num_temp_tensors,
        num_values, instruction_chains, main_chain_idx, init_chain_idx, input_map, output_map, mutable_buffer_map, named_slots,
        tensor_meta,
    }
    chain { instructions }
    instruction { op_type, op }
    tensor_meta { shape, scalar_type, dim_order }
    shape_dim { value, min_value, max_value }
    slot_variant { idx, slot_type }
    named_slot { name, slot }
    int_or_vid { literal, vid, is_vid }
    float_or_vid { literal, vid, is_vid }
    vid_or_tid { vid, tid, is_vid }
    int_or_vid_or_tid { literal, vid, tid, kind }
}
