/*
 * weak.h
 *		What gpuvecd's files give way to where the target has it, too.
 */
#pragma weak gv_now_ns
#pragma weak gv_loop_answer
